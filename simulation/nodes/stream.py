"""A stream of JetStream as nats-server 2.9 keeps it on several servers.

Nothing acknowledged is lost. But a message may be written while its answer is lost, or reach the
servers late; and what it expects to be the last message of its subject is compared when the leader
takes it, before those are written that it took just now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from nats.js import api

from simulation.clock import Clock

DUPLICATES_S: Final = 120.0
"""How long the servers know a message by its id."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """A message that is to be written.

    Args:
        subject: Its subject.
        payload: Its bytes.
        headers: Its headers, those for the servers included.
        writer: The node that wrote it.
    """

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    writer: str

    @property
    def message_id(self) -> str:
        """Its id, empty for none."""
        return self.headers.get(api.Header.MSG_ID.value, "")

    @property
    def expected(self) -> int | None:
        """Sequence of the last message of the subject, 0 for none; None for any."""
        found = self.headers.get(api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value)
        return None if found is None else int(found)


@dataclass(frozen=True, slots=True)
class Written:
    """A message that is written.

    Args:
        sequence: Its place among all of the stream.
        message: What it is.
    """

    sequence: int
    message: Proposed


class WrongLastSequence(Exception):  # noqa: N818 - as the server calls it
    """Another message is the last of its subject than the one expected."""


class ReplicatedStream:
    """What the servers have, and what their leader took and is not written yet."""

    def __init__(self, clock: Clock, on_written: Callable[[Written], None]) -> None:
        self._clock = clock
        self._on_written = on_written
        self._last_sequence = 0
        self._messages: dict[str, dict[int, Written]] = defaultdict(dict)
        self._last: dict[str, int] = defaultdict(int)
        self._ids: dict[str, tuple[int, float]] = {}  # sequence, and when it was written
        self._taken: list[Proposed] = []
        self._on_the_way: list[tuple[float, Proposed]] = []

    def write(self, message: Proposed) -> int:
        """Write a message; return its sequence, that of the first time if it is known by its id.

        Raises:
            WrongLastSequence: If it may not follow what is written.
        """
        self.take(message)
        return self.commit()

    def take(self, message: Proposed) -> None:
        """Take a message that is written with the next one, or if some time passes.

        Raises:
            WrongLastSequence: If it may not follow what is written.
        """
        if self._known(message) is None and not self._may_follow(message):
            raise WrongLastSequence
        self._taken.append(message)

    def commit(self) -> int:
        """Write what was taken, in its order; return the sequence of the last of these."""
        taken, self._taken = self._taken, []
        sequence = 0
        for message in taken:
            sequence = self._known(message) or self._write(message)
        return sequence

    def drop(self) -> None:
        """Lose the leader, with what it took: nobody was told that it is written."""
        self._taken = []

    def send_late(self, message: Proposed, at_s: float) -> None:
        """Let a message reach the leader at a time."""
        self._on_the_way.append((at_s, message))

    def pass_time(self, now_s: float) -> None:
        """Write what was taken, and take what comes late."""
        self.commit()
        due = [message for at_s, message in self._on_the_way if at_s <= now_s]
        self._on_the_way = [own for own in self._on_the_way if own[0] > now_s]
        for message in due:
            try:
                self.write(message)
            except WrongLastSequence:
                continue  # whoever would hear of it waits no more

    def _known(self, message: Proposed) -> int | None:
        """Return the sequence of a message that is written already."""
        sequence, at_s = self._ids.get(message.message_id, (0, 0.0))
        is_known = sequence and self._clock.now_s - at_s < DUPLICATES_S
        return sequence if message.message_id and is_known else None

    def _may_follow(self, message: Proposed) -> bool:
        return message.expected in (None, self._last[message.subject])

    def _write(self, message: Proposed) -> int:
        self._last_sequence += 1
        written = Written(self._last_sequence, message)
        self._messages[message.subject][written.sequence] = written
        self._last[message.subject] = written.sequence
        self._ids[message.message_id] = written.sequence, self._clock.now_s
        self._on_written(written)
        return written.sequence

    def last(self, subject: str) -> int:
        """Return the sequence of the last message of a subject, 0 without any."""
        return max(self._messages[subject], default=0)

    def get(self, sequence: int) -> Written | None:
        """Return a message, None if it is not there."""
        found = (own.get(sequence) for own in self._messages.values())
        return next((own for own in found if own is not None), None)

    def following(self, subject: str, sequence: int) -> Written | None:
        """Return the first message of a subject from a sequence on, None if there is none."""
        own = self._messages[subject]
        numbers = list(own)
        place = bisect_left(numbers, sequence)
        return own[numbers[place]] if place < len(numbers) else None

    def delete(self, sequence: int) -> bool:
        """Delete a message; return whether it was there."""
        return any(own.pop(sequence, None) is not None for own in self._messages.values())

    def used_bytes(self) -> int:
        """Return how many bytes all messages take."""
        every = (own for messages in self._messages.values() for own in messages.values())
        return sum(len(own.message.payload) for own in every)
