"""A bucket of keys: values with revisions, of which one writer at a time is let through.

Keys of a bucket with a time to live go by themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it was last written.

    Args:
        value: Its value.
        revision: Greater than that of any earlier write of the bucket.
        written_s: When that was, seconds since the start.
    """

    value: str
    revision: int
    written_s: float


class Bucket:
    """What a majority of the servers has."""

    def __init__(self, ttl_s: float = math.inf) -> None:
        self._ttl_s = ttl_s
        self._keys: dict[str, Key] = {}
        self._last_revision = 0

    def put(self, name: str, value: str, revision: int, now_s: float) -> int | None:
        """Write a key that has a revision, 0 if it is not there; return the new one, else None."""
        now = self.entries(now_s).get(name)
        if (now.revision if now is not None else 0) != revision:
            return None
        self._last_revision += 1
        self._keys[name] = Key(value, self._last_revision, now_s)
        return self._last_revision

    def entries(self, now_s: float) -> dict[str, Key]:
        """Return all keys that are there."""
        return {
            name: own for name, own in self._keys.items() if now_s - own.written_s < self._ttl_s
        }
