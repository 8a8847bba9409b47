"""Garbage collection that stops nobody for long.

Python looks at all objects whenever a quarter of them is new, which takes 100 ms at the size of
a thousand runs, and every thread waits. But nearly all objects are freed without that, and what
needs it makes memory grow. So young objects are looked at as usual, all of them once memory
has grown, and never again those that were there at the start.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

GROWN_BYTES: Final = 64 << 20
"""All objects are looked at when the process has become so much larger since the last time."""

GROWN_SHARE: Final = 0.25
"""Or by so much of its size, if that is more."""

NEVER: Final = 1 << 30


def resident_bytes() -> int:
    """Return the memory that this process has; where the system does not say, the most it had."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10
    return pages * os.sysconf("SC_PAGE_SIZE")


class GarbageCollector:
    """Looks at all objects when memory has grown.

    Args:
        resident: Returns the memory that the process has, bytes.
    """

    def __init__(self, resident: Callable[[], int] = resident_bytes) -> None:
        self._resident = resident
        self._size = 0  # when all objects were looked at last

    @contextlib.contextmanager
    def pausing_briefly(self) -> Iterator[None]:
        """Look at all objects only where `look` finds it due, and never at those there are now."""
        before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(before[0], before[1], NEVER)
        self._size = self._resident()
        try:
            yield
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()

    def look(self) -> None:
        """Look at all objects if memory has grown; to be called about once a second."""
        size = self._resident()
        if size - self._size >= max(GROWN_BYTES, GROWN_SHARE * self._size):
            gc.collect()
            self._size = self._resident()
