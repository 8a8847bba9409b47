"""Faults after `attach`: counted, told once per kind, never raised into training."""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger("gradwatch")


class Faults:
    """What went wrong so far."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.last = ""

    def note(self, what: str, why: object) -> None:
        """Count a fault; the first of each kind is logged."""
        self.counts[what] += 1
        self.last = f"{what}: {why}"
        if self.counts[what] == 1:
            logger.warning("gradwatch: %s; training goes on (told once)", self.last)
