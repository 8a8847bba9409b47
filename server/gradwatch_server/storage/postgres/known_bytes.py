"""How much room something takes: asked for once, and counted from then on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class KnownBytes:
    """A sum that only its owner changes.

    Args:
        measure: Asks PostgreSQL for it.
    """

    def __init__(self, measure: Callable[[], int]) -> None:
        self._measure = measure
        self._known: int | None = None

    def get(self) -> int:
        """Return it."""
        if self._known is None:
            self._known = self._measure()
        return self._known

    @contextlib.contextmanager
    def changing(self) -> Iterator[Callable[[int], None]]:
        """Give what takes each change inside; it counts if nothing is raised.

        What is raised may have come after the commit, so that it is asked for again then.
        """
        before, self._known = self._known, None
        change = 0

        def add(num_bytes: int) -> None:
            nonlocal change
            change += num_bytes

        yield add
        if before is not None:
            self._known = before + change

    def forget(self) -> None:
        """Let it be asked for again."""
        self._known = None
