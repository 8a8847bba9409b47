"""Faults after `attach`: counted, told once per kind, never raised into training."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator

logger = logging.getLogger("gradwatch")


def tell(level: int, message: str) -> None:
    """Log a line; a handler of the training script that raises must not end the training."""
    with contextlib.suppress(Exception):
        logger.log(level, "gradwatch: %s", message)


class Faults:
    """Faults so far."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.last = ""
        self._told: set[str] = set()

    def note(self, what: str, why: object) -> None:
        """Count a fault; the first of each kind is logged."""
        self.counts[what] += 1
        self.last = f"{what}: {why}"
        if self.counts[what] == 1:
            tell(logging.WARNING, f"{self.last}; training goes on (told once)")

    def tell_once(self, what: str, message: str) -> None:
        """Tell what the user must know though nothing went wrong; each kind once."""
        if what not in self._told:
            self._told.add(what)
            tell(logging.WARNING, f"{message} (told once)")

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Note what is raised in the block, and go on after it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self.note(what, repr(error))
