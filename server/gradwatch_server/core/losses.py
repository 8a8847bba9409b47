"""Losses of a session: ranges of sequence numbers, and the steps around them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from gradwatch_server.core.packing import pack_integer

MAX_RANGES: Final = 32
"""Ranges kept per session, the newest."""


class RecentCount:
    """Counts what happened while the frames of the window closed: older events do not count."""

    def __init__(self, frames: int) -> None:
        """Begin at none.

        Args:
            frames: How many frames the window holds.
        """
        self.frames = frames
        self._counts: deque[list[int]] = deque()  # frames closed by then, and how many
        self._total = 0

    def add(self, num_frames: int, count: int = 1) -> None:
        """Count what happened when so many frames had closed."""
        if self._counts and self._counts[-1][0] == num_frames:
            self._counts[-1][1] += count
        else:
            self._counts.append([num_frames, count])
        self._total += count
        self.value(num_frames)

    def value(self, num_frames: int) -> int:
        """Return how many there were within the window that ends at *num_frames* frames."""
        while self._counts and self._counts[0][0] <= num_frames - self.frames:
            self._total -= self._counts.popleft()[1]
        return self._total

    def state_dict(self) -> list[list[int | str]]:
        """Return plain data."""
        return [[number, pack_integer(count)] for number, count in self._counts]

    def load_state_dict(self, state: Iterable[Iterable[Any]]) -> None:
        """Take up what `state_dict` described."""
        for number, count in state:
            self._counts.append([number, int(count)])
            self._total += int(count)


@dataclass(frozen=True, slots=True)
class LostRange:
    """Records `first..last` that the aggregator declared lost.

    Args:
        first: First sequence number.
        last: Last sequence number.
        after_step: Step of the last statistics stored before them, None if there were none.
        before_step: Step of the first statistics stored after them, None while there are none.
    """

    first: int
    last: int
    after_step: int | None
    before_step: int | None = None

    @property
    def count(self) -> int:
        """Number of lost records."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class DeclaredLoss:
    """Statement that a rank can no longer supply some records.

    Args:
        rank: Global rank.
        lost: The records.
        received_ns: When it was declared, nanoseconds since the epoch.
    """

    rank: int
    lost: LostRange
    received_ns: int


class Losses:
    """The ranges that one session lost."""

    def __init__(self, ranges: Iterable[LostRange] = ()) -> None:
        self._ranges = deque(ranges, maxlen=MAX_RANGES)

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

    def state_dict(self) -> list[dict[str, int | None]]:
        """Return plain data."""
        return [asdict(lost) for lost in self._ranges]

    @classmethod
    def from_state_dict(cls, state: Iterable[Mapping[str, Any]]) -> Self:
        """Return what `state_dict` described."""
        return cls(LostRange(**own) for own in state)
