"""What a session lost: ranges of sequence numbers, and the steps around them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from gradwatch_server.core.alerting.origin import Origin

MAX_RANGES: Final = 32
"""Ranges kept per session, the newest."""


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
        """How many there are."""
        return self.last - self.first + 1


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


def loss_origin(rank: int, lost: LostRange) -> Origin:
    """Return where a loss began: the step after the last one that was stored."""
    step = 0 if lost.after_step is None else lost.after_step + 1
    return Origin(step, rank, (rank,), None, None, float(lost.count), None)


def extended(origin: Origin, rank: int, lost: LostRange) -> Origin:
    """Return *origin* with what else was lost since; it stays where it began."""
    ranks = tuple(sorted({*origin.ranks, rank}))
    return replace(origin, ranks=ranks, value=origin.value + lost.count)
