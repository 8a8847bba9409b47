"""A stream of JetStream: replicated, so nothing acknowledged is lost, whoever else is.

An append may find no leader, or be written while its answer is lost, or be written later than its
writer thinks. Whether it may be written is decided where it is: by its id, which is written once,
and by the sequence of the last message of its subject.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

LATE_S: Final = 8.0
"""The longest time that an append is on its way."""


@dataclass(frozen=True, slots=True)
class Append:
    """A message that is to be written.

    Args:
        subject: Its subject.
        payload: Its bytes.
        headers: Its headers.
        message_id: Of it and no other one, empty for none.
        expected: Sequence of the last message of the subject, 0 for none; None for any.
    """

    subject: str
    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    message_id: str = ""
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that is written.

    Args:
        seq: Its place among all of the stream.
        message: What was to be written.
    """

    seq: int
    message: Append


class ReplicatedStream:
    """What a majority of the servers has."""

    def __init__(self, on_stored: Callable[[Stored], None]) -> None:
        self.last_seq = 0
        self._on_stored = on_stored
        self._by_subject: dict[str, dict[int, Stored]] = defaultdict(dict)
        self._last: dict[str, Stored] = {}
        self._ids: dict[str, int] = {}
        self._late: list[tuple[float, Append]] = []

    def apply(self, append: Append) -> int | None:
        """Write a message; return its sequence, None if another one is the last of its subject."""
        known = self._known(append)
        if known is not None:
            return known
        if not self._may_follow(append):
            return None
        self.last_seq += 1
        stored = Stored(self.last_seq, append)
        self._by_subject[append.subject][stored.seq] = stored
        self._last[append.subject] = stored
        if append.message_id:
            self._ids[append.message_id] = stored.seq
        self._on_stored(stored)
        return stored.seq

    def _known(self, append: Append) -> int | None:
        """Return the sequence of a message that is written already."""
        return self._ids.get(append.message_id) if append.message_id else None

    def _may_follow(self, append: Append) -> bool:
        """Tell whether the last message of the subject is the one that the writer knows of."""
        last = self._last.get(append.subject)
        return append.expected in (None, last.seq if last is not None else 0)

    def apply_later(self, append: Append, at_s: float) -> None:
        """Write a message at a time, if it then may be written."""
        self._late.append((at_s, append))

    def pass_time(self, now_s: float) -> None:
        """Write what comes late."""
        due = [append for at_s, append in self._late if at_s <= now_s]
        self._late = [own for own in self._late if own[0] > now_s]
        for append in due:
            self.apply(append)

    def last(self, subject: str) -> Stored | None:
        """Return the last message of a subject."""
        return self._last.get(subject)

    def read(self, subject: str, after: int = 0) -> Sequence[Stored]:
        """Return the messages of a subject after a sequence, oldest first."""
        return [own for seq, own in self._by_subject[subject].items() if seq > after]

    def delete(self, subject: str, upto: int) -> None:
        """Delete the messages of a subject up to a sequence."""
        own = self._by_subject[subject]
        for seq in [seq for seq in own if seq <= upto]:
            del own[seq]
