"""Faults after `attach`: counted, told once per kind, never raised into training."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator

logger = logging.getLogger("gradwatch")


class Faults:
    """What went wrong so far."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.last = ""

    def note(self, what: str, why: object) -> None:
        """Count a fault; the log hears of each kind once."""
        self.counts[what] += 1
        self.last = f"{what}: {why}"
        if self.counts[what] == 1:
            logger.warning("gradwatch: %s; training goes on (told once)", self.last)

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Note what is raised in the block, and go on after it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self.note(what, repr(error))
