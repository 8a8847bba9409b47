"""A set of places in a log, as ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import msgpack


class Places:
    """Places in a log; it never changes.

    Args:
        ranges: First and last place of each, in any order; they may overlap.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            elif first <= last:
                merged.append((first, last))
        self.ranges = merged
        self._before = [0]  # how many places are in the ranges before each
        for first, last in merged:
            self._before.append(self._before[-1] + last - first + 1)

    @classmethod
    def of(cls, offsets: Iterable[int]) -> Places:
        """Return these places."""
        return cls((offset, offset) for offset in offsets)

    def __contains__(self, offset: int) -> bool:
        return self.count(offset, offset) == 1

    def __len__(self) -> int:
        return self._before[-1]

    def __or__(self, other: Places) -> Places:
        return Places([*self.ranges, *other.ranges])

    def count(self, first: int, last: int) -> int:
        """Return how many of the places `first..last` are in it."""
        return self._upto(last) - self._upto(first - 1)

    def _upto(self, offset: int) -> int:
        at = bisect_right(self.ranges, offset, key=lambda own: own[0])
        if at == 0:
            return 0
        first, last = self.ranges[at - 1]
        return self._before[at - 1] + min(offset, last) - first + 1

    def since(self, first: int) -> Places:
        """Return those from a place on."""
        return Places((max(own, first), last) for own, last in self.ranges if last >= first)

    def gaps(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `first..last` that are not in it."""
        at = first
        for own, end in self.ranges:
            if own > last:
                break
            if own > at:
                yield at, own - 1
            at = max(at, end + 1)
        if at <= last:
            yield at, last

    def encode(self) -> bytes:
        """Return it as bytes."""
        body: bytes = msgpack.packb(self.ranges)
        return body

    @classmethod
    def decode(cls, body: bytes) -> Places:
        """Return what was encoded."""
        return cls((first, last) for first, last in msgpack.unpackb(body))
