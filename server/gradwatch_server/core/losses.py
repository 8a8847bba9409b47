"""Losses of a session, and counts of an attempt: what happened beside its frames."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, Self

MAX_RANGES: Final = 32
"""Ranges kept per session, the newest."""


MAX_COUNT: Final = (1 << 63) - 1
"""Largest sum of counts that clients claim: it stays there."""


@dataclass
class RecentCount:
    """Count of what happened while the frames of the window closed: older events do not count."""

    frames: int
    _counts: deque[list[int]] = field(default_factory=deque)  # frames closed by then, and how many

    def __post_init__(self) -> None:
        self._total = sum(count for _, count in self._counts)

    def add(self, num_frames: int, count: int = 1) -> None:
        """Count what happened when so many frames had closed."""
        if not self._counts or self._counts[-1][0] != num_frames:
            self._counts.append([num_frames, 0])
        newest = self._counts[-1]
        added = min(count, MAX_COUNT - newest[1])
        newest[1] += added
        self._total += added
        self.value(num_frames)

    def value(self, num_frames: int) -> int:
        """Return how many there were within the window that ends at *num_frames* frames."""
        while self._counts and self._counts[0][0] <= num_frames - self.frames:
            self._total -= self._counts.popleft()[1]
        return self._total


@dataclass(frozen=True, slots=True)
class LostRange:
    """Records `first..last` that the aggregator declared lost.

    Args:
        after_step: Step of the last statistics stored before them, None if there were none.
        before_step: Step of the first statistics stored after them, None while there are none.
    """

    first: int
    last: int
    after_step: int | None
    before_step: int | None = None

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class DeclaredLoss:
    """Statement that a rank can no longer supply some records."""

    rank: int
    lost: LostRange
    received_ns: int


@dataclass(slots=True)
class Losses:
    """The ranges that one session lost."""

    _ranges: deque[LostRange] = field(default_factory=lambda: deque(maxlen=MAX_RANGES))

    def add(self, lost: LostRange) -> None:
        """Note a range; one that follows the last with nothing between extends it."""
        if self._ranges and self._ranges[-1].last + 1 == lost.first:
            lost = replace(self._ranges.pop(), last=lost.last)
        self._ranges.append(lost)

    def resume(self, step: int) -> None:
        """Note the step of statistics that were stored: the first after the last range."""
        if self._ranges and self._ranges[-1].before_step is None:
            self._ranges[-1] = replace(self._ranges[-1], before_step=step)

    def ranges(self) -> tuple[LostRange, ...]:
        """Return the newest ranges, oldest first."""
        return tuple(self._ranges)


MAX_EVENT_NAMES: Final = 256
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
