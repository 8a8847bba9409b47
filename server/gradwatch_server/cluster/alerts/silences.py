"""Silences of a cluster: kept in a bucket, and put in force in each partition with an engine."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.cluster.repeating import Repeating
from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.entries import Body, SilenceAdded, SilenceRemoved
from gradwatch_server.core.known_fields import known_fields
from gradwatch_server.core.state import State
from gradwatch_server.engine.alert_commands import AddSilence, RemoveSilence
from gradwatch_server.engine.commands import CommandError, Outcome
from gradwatch_server.engine.engine import Engine
from gradwatch_server.nats.errors import NATSError
from gradwatch_server.nats.key_value import KeyEntry, KeyValue

logger = logging.getLogger(__name__)

READ_S: Final = 5.0
"""How often all of them are read; what somebody says he wrote is known at once."""

LOOK_S: Final = 0.5
"""How often it is looked whether all engines keep to them."""


@dataclass(frozen=True, slots=True)
class _Agree:
    """A command: the silences in force are to be these."""

    wanted: tuple[Silence, ...]

    def __call__(self, state: State, now_ns: int) -> Outcome:
        ids = {own.id for own in self.wanted}
        new = (own for own in self.wanted if own.id not in state.silences)
        gone = (own for own in state.silences if own.id not in ids and own.until_ns > now_ns)
        bodies: list[Body] = [SilenceAdded(own) for own in new]
        bodies += [SilenceRemoved(own.id) for own in gone]
        return Outcome(lambda _: None, tuple(bodies))


class ClusterSilences:
    """Those of all partitions.

    Args:
        bucket: Where they are.
        engines: Returns those of this node.
        clock: Tells the time.
    """

    def __init__(
        self, bucket: KeyValue, engines: Callable[[], Iterable[Engine]], clock: Clock
    ) -> None:
        self._bucket = bucket
        self._engines = engines
        self._clock = clock
        # Id -> revision and silence, None for one that was ended; replaced, never changed.
        self._known: dict[str, tuple[int, Silence | None]] = {}
        self._known_lock = threading.Lock()
        self._is_read = False
        self._read_s = float("-inf")
        self._looks = Repeating("silences", self._look, LOOK_S)
        self.start, self.stop = self._looks.start, self._looks.stop
        bucket.watch(self._note)

    @property
    def all(self) -> tuple[Silence, ...]:
        """Those that are known of, in the order in which they were made."""
        found = (silence for _, silence in self._known.values() if silence is not None)
        return tuple(sorted(found, key=lambda own: own.created_ns))

    def add(self, command: AddSilence) -> Silence:
        """Add one; may wait for NATS.

        Raises:
            CommandError: As the command says, or if NATS does not answer.
        """
        silence = command.make(self.all, self._clock.now_ns())
        try:
            revision = self._bucket.create(silence.id, json.dumps(asdict(silence)).encode())
        except NATSError as error:
            raise CommandError(503, f"NATS: {error}") from error
        if revision is not None:
            self._take(silence.id, revision, silence)
        return silence

    def remove(self, command: RemoveSilence) -> None:
        """End one; likewise."""
        command.check(self.all, self._clock.now_ns())
        revision, _ = self._known[command.silence_id]
        try:
            self._bucket.delete(command.silence_id, revision)
        except NATSError as error:
            raise CommandError(503, f"NATS: {error}") from error
        self._take(command.silence_id, revision + 1, None)

    def _look(self) -> None:
        try:
            if time.monotonic() - self._read_s > READ_S:
                self._read()
                self._read_s = time.monotonic()
        except NATSError as error:
            logger.debug("silences: %s", error)
        if self._is_read:
            self._put_in_force()

    def _read(self) -> None:
        """Read all; what was written meanwhile stands."""
        before = self._known
        entries = self._bucket.entries().values()
        read = {own.key: (own.revision, found) for own in entries if (found := _decode(own))}
        with self._known_lock:
            newer = {
                key: own
                for key, own in self._known.items()
                if (own[0] > read[key][0] if key in read else own != before.get(key))
            }
            self._known, self._is_read = {**read, **newer}, True
        now_ns = self._clock.now_ns()
        for key, (revision, silence) in read.items():
            if silence.until_ns <= now_ns:
                self._bucket.delete(key, revision)
                self._take(key, revision + 1, None)

    def _put_in_force(self) -> None:
        now_ns = self._clock.now_ns()
        wanted = tuple(own for own in self.all if own.until_ns > now_ns)
        ids = {own.id for own in wanted}
        for engine in self._engines():
            there = {own.id for own in engine.published.silences if own.until_ns > now_ns}
            if there != ids:
                engine.commands.submit(_Agree(wanted))

    def _note(self, entry: KeyEntry) -> None:
        """Note one that was written just now."""
        self._take(entry.key, entry.revision, _decode(entry))

    def _take(self, key: str, revision: int, silence: Silence | None) -> None:
        """Take what was written, unless something later is known."""
        with self._known_lock:
            if key not in self._known or revision > self._known[key][0]:
                self._known = {**self._known, key: (revision, silence)}


def _decode(entry: KeyEntry) -> Silence | None:
    if entry.value is None:
        return None
    try:
        return Silence(**known_fields(Silence, json.loads(entry.value)))
    except (ValueError, TypeError) as error:
        logger.warning("silence %s cannot be read: %s", entry.key, error)
        return None
