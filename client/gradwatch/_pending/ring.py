"""A ring of host memory into which a device copies numbers, each of which says that it is there.

Before a copy is enqueued its place is filled with a bit pattern that no number has. The reader asks
nobody whether the copy is done: it looks at the memory until no element has the pattern. It needs
no event and makes no call into a driver, which in a background thread would open contexts, wait for
locks and break the graph captures of other threads.

What that stands on: each element is 8 bytes at an address divisible by 8, which processors and
devices write and read as a whole; what the processor wrote before a copy was enqueued is there
before the copy, as with everything that is uploaded; and what a device has written to pinned memory
is seen by the processor, in whatever order. The order is not relied on: all elements are looked at,
and twice, so that a number is taken only if it was the same both times.
"""

from __future__ import annotations

import struct
import weakref
from array import array
from collections import deque
from typing import Final

ABSENT: Final = 0x7FF8_6762_7361_6E74
"""A quiet NaN with a payload. What is copied here has the NaN of the processor, without one."""

_ABSENT_BYTES: Final = struct.pack("=Q", ABSENT)
ITEM_BYTES: Final = 8


class RingNumbers:
    """Numbers on their way into a place of a ring.

    Args:
        place: Their memory, elements of 8 bytes as whole numbers.
    """

    __slots__ = ("__weakref__", "_data", "_place")

    def __init__(self, place: memoryview[int]) -> None:
        self._place = place
        self._data: bytes | None = None

    @property
    def is_taken(self) -> bool:
        """Arrival: true if they have arrived, and are kept here: the place may hold others."""
        return self._data is not None

    def ready(self) -> bool:
        """Tell whether all have arrived, and keep them then; never waits."""
        if self._data is None:
            self._data = arrived(self._place)
        return self._data is not None

    def read(self) -> list[float]:
        """Return them; only once `ready`."""
        return array("d", self._data or b"").tolist()


class Ring:
    """Places for numbers, used again in the order in which they were given out.

    All is called in one thread, but for the numbers themselves.

    Args:
        memory: Elements of 8 bytes, format `Q`, writable; what it belongs to has to outlive every
            copy into it.
    """

    def __init__(self, memory: memoryview[int]) -> None:
        self._memory = memory
        self._absent = memoryview(array("Q"))
        self._used: deque[_Used] = deque()  # oldest first

    def __len__(self) -> int:
        return len(self._memory)

    def take(self, count: int) -> tuple[int, RingNumbers] | None:
        """Return where *count* numbers, at least one, are to be written to; None without room.

        Returns:
            The first element, and what reads them.
        """
        while self._used and self._used[0].is_over():
            self._used.popleft()
        start = self._find(count)
        if start is None:
            return None
        place = self._memory[start : start + count]
        if len(self._absent) < count:
            self._absent = memoryview(array("Q", [ABSENT]) * count)
        place[:] = self._absent[:count]
        numbers = RingNumbers(place)
        self._used.append(_Used(start, place, numbers))
        return start, numbers

    def _find(self, count: int) -> int | None:
        if not self._used:
            return 0 if count <= len(self) else None
        oldest, newest = self._used[0].start, self._used[-1]
        if newest.start < oldest:  # they go around the end
            return newest.stop if newest.stop + count <= oldest else None
        if newest.stop + count <= len(self):
            return newest.stop
        return 0 if count <= oldest else None


class _Used:
    """A place that was given out."""

    __slots__ = ("_numbers", "_place", "start", "stop")

    def __init__(self, start: int, place: memoryview[int], numbers: RingNumbers) -> None:
        self.start, self.stop = start, start + len(place)
        self._place = place
        self._numbers = weakref.ref(numbers)

    def is_over(self) -> bool:
        """Tell whether nobody will read it and nothing will write to it any more."""
        numbers = self._numbers()
        # Of numbers that were dropped the copy may still come, and would fall on others.
        return arrived(self._place) is not None if numbers is None else numbers.is_taken


def arrived(place: memoryview[int]) -> bytes | None:
    if place[-1] == ABSENT:  # most of what is on its way: copies begin at the beginning
        return None
    data = place.tobytes()
    if _has_absent(data) or place.tobytes() != data:
        return None
    return data


def _has_absent(data: bytes) -> bool:
    found = data.find(_ABSENT_BYTES)
    while found >= 0:
        if found % ITEM_BYTES == 0:
            return True
        found = data.find(_ABSENT_BYTES, found + 1)  # parts of two numbers
    return False
