"""Buckets of keys as the servers have them, and as one node reaches them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gradwatch_server.nats.errors import UnreachableError
from gradwatch_server.nats.key_value import KeyEntry
from simulation.clock import Clock
from simulation.nodes.bus import Bus
from simulation.nodes.faults import NodeFaults
from simulation.nodes.waiter import Waiter

CALL_S: Final = 2.0
"""The longest time until it is known that no answer comes."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it was last written.

    Args:
        value: Its value, None if it was deleted.
        revision: Greater than that of any earlier write of the bucket.
        written_s: When that was, seconds since the start.
    """

    value: bytes | None
    revision: int
    written_s: float


class Bucket:
    """What a majority of the servers has."""

    def __init__(self, name: str, clock: Clock, ttl_s: float = math.inf) -> None:
        self.name = name
        self._clock = clock
        self._ttl_s = ttl_s
        self._keys: dict[str, Key] = {}
        self._last_revision = 0

    def write(self, key: str, value: bytes | None, revision: int) -> int | None:
        """Write a key that has a revision, 0 if it is not there; return the new one, else None."""
        now = self._alive(key)
        has = 0 if now is None or (now.value is None and not revision) else now.revision
        if has != revision:
            return None
        self._last_revision += 1
        self._keys[key] = Key(value, self._last_revision, self._clock.now_s)
        return self._last_revision

    def entries(self) -> dict[str, KeyEntry]:
        """Return all keys that are there."""
        return {
            key: KeyEntry(key, own.value, own.revision)
            for key in self._keys
            if (own := self._alive(key)) is not None and own.value is not None
        }

    def copy(self) -> tuple[dict[str, Key], int]:
        """Return what is in it."""
        return dict(self._keys), self._last_revision

    def replace(self, copy: tuple[dict[str, Key], int]) -> None:
        """Put a copy in its place; revisions go on from there."""
        self._keys, self._last_revision = dict(copy[0]), copy[1]

    def _alive(self, key: str) -> Key | None:
        own = self._keys.get(key)
        is_alive = own is not None and self._clock.now_s - own.written_s < self._ttl_s
        return own if is_alive else None


class SimulatedKeyValue:
    """Takes the place of `KeyValue`."""

    def __init__(
        self, bucket: Bucket, node: int, faults: NodeFaults, bus: Bus, waiter: Waiter
    ) -> None:
        self._bucket = bucket
        self._node = node
        self._faults = faults
        self._bus = bus
        self._waiter = waiter
        self._take: Callable[[KeyEntry], None] = lambda _entry: None

    def create(self, key: str, value: bytes) -> int | None:
        """Write a key that is not there; return its revision, None if it is there."""
        return self._write(key, value, 0)

    def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Write a key that has a revision; return the new one, None if it has another or went."""
        return self._write(key, value, revision)

    def update_all(self, writes: Mapping[str, tuple[bytes, int]]) -> dict[str, int | None]:
        """Write keys as `update` does; what fails at one may be done of those before it."""
        return {key: self._write(key, value, after) for key, (value, after) in writes.items()}

    def delete(self, key: str, revision: int) -> bool:
        """Delete a key that has a revision; return whether it had it."""
        return self._write(key, None, revision) is not None

    def get(self, key: str) -> KeyEntry | None:
        """Return a key, None if it is not there."""
        return self.entries().get(key)

    def entries(self) -> dict[str, KeyEntry]:
        """Return all keys."""
        self._reach()
        return self._bucket.entries()

    def watch(self, take: Callable[[KeyEntry], None]) -> None:
        """Have *take* called for each key that another one says it wrote."""
        self._take = take
        self._bus.listen(self._node, self._bucket.name)

    def hear(self, entry: KeyEntry) -> None:
        """Take what another one wrote."""
        self._take(entry)

    def _reach(self) -> None:
        if self._faults.reaches_nats(self._node) and self._faults.has_buckets:
            return
        self._waiter.pass_by(self._faults.random.random() * CALL_S)
        raise UnreachableError("the bucket does not answer")

    def _write(self, key: str, value: bytes | None, revision: int) -> int | None:
        self._waiter.point("before a key is written")
        self._reach()
        is_answered = not self._faults.chance(self._faults.scenario.unanswered / 4)
        written = None
        if is_answered or self._faults.random.random() < 0.5:
            written = self._bucket.write(key, value, revision)
        if not is_answered:
            self._faults.note("a write to", self._bucket.name, "gets no answer")
            self._waiter.pass_by(self._faults.random.random() * CALL_S)
            raise UnreachableError("no answer")
        if written is not None:
            told = KeyEntry(key, value, written)
            self._bus.publish(self._node, self._bucket.name, told)
        self._waiter.point("after a key is written")
        return written
