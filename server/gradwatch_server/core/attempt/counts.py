"""Counts of one attempt: its events by name, and the records that no frame could take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gradwatch_server.core.losses import RecentCount

MAX_EVENT_NAMES = 256
"""Names of events counted one by one in an attempt; more are counted as `other`."""


class Counts:
    """What is counted beside the frames.

    Attributes:
        events: How many events of each name came.
        num_late: Records that were late, since the attempt began.
        late: Those of them that came while the frames of the window closed.
        lost: Records declared lost while they did.
        unresolved: Records that fitted no manifest while they did.
    """

    def __init__(self, steps: int) -> None:
        """Begin at none.

        Args:
            steps: How many frames the window holds.
        """
        self.events: Counter[str] = Counter()
        self.num_late = 0
        self.late, self.lost, self.unresolved = (RecentCount(steps) for _ in range(3))

    def add_event(self, name: str) -> None:
        """Count an event."""
        known = name in self.events or len(self.events) < MAX_EVENT_NAMES
        self.events[name if known else "other"] += 1

    def add_late(self, num_frames: int) -> None:
        """Count a late record when so many frames had closed."""
        self.num_late += 1
        self.late.add(num_frames)

    def resize_window(self, steps: int) -> None:
        """Count from now on for as many frames as the window then holds."""
        for recent in (self.late, self.lost, self.unresolved):
            recent.frames = steps

    def recent_state_dict(self) -> list[Any]:
        """Return plain data of what came while the frames of the window closed."""
        return [own.state_dict() for own in (self.late, self.lost, self.unresolved)]

    def load_recent_state_dict(self, plain: Sequence[Any]) -> None:
        """Take over what `recent_state_dict` described."""
        for own, counts in zip((self.late, self.lost, self.unresolved), plain, strict=True):
            own.load_state_dict(counts)
