"""Counts of one attempt: its events by name, and the records that no frame could take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from gradwatch_server.core.losses import RecentCount

MAX_EVENT_NAMES = 256
"""Names of events counted one by one in an attempt; more are counted as `other`."""


@dataclass(slots=True)
class Counts:
    """Counts beside the frames.

    Args:
        late: Late records that came while the frames of the window closed.
    """

    late: RecentCount
    lost: RecentCount
    unresolved: RecentCount
    events: dict[str, int] = field(default_factory=dict)
    num_late: int = 0

    @classmethod
    def of(cls, steps: int) -> Self:
        """Return counts of none, for a window of so many frames."""
        return cls(RecentCount(steps), RecentCount(steps), RecentCount(steps))

    def add_event(self, name: str) -> None:
        known = name in self.events or len(self.events) < MAX_EVENT_NAMES
        counted = name if known else "other"
        self.events[counted] = self.events.get(counted, 0) + 1

    def add_late(self, num_frames: int) -> None:
        """Count a late record when so many frames had closed."""
        self.num_late += 1
        self.late.add(num_frames)

    def resize_window(self, steps: int) -> None:
        """Count from now on for as many frames as the window then holds."""
        for recent in (self.late, self.lost, self.unresolved):
            recent.frames = steps
