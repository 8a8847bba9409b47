"""How many alert streams may be open at once: each holds a connection for as long as it likes."""

from __future__ import annotations

from typing import Final

MAX_STREAMS: Final = 256


class StreamLimit:
    """Counts the open streams."""

    def __init__(self, most: int = MAX_STREAMS) -> None:
        self._num_free = most

    def acquire(self) -> bool:
        """Count one more stream; return False if there are as many as may be."""
        if not self._num_free:
            return False
        self._num_free -= 1
        return True

    def release(self) -> None:
        """Count one less."""
        self._num_free += 1
