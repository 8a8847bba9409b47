"""Frames: all ranks' statistics of one step, put together and closed in the order of steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from heapq import heappop, heappush
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwatch_wire import Stats

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
IndexArray: TypeAlias = npt.NDArray[np.int64]

LATENESS_NS: Final = 5_000_000_000
"""A frame closes without the ranks that are this much behind its first record."""

MAX_HELD_RECORDS: Final = 8_192
"""A frame also closes without them when the open frames hold this many records, or 16 per rank:
after an outage one rank may send its whole backlog before another is connected again."""

COLUMNS: Final = ("l2", "l1", "linf", "zeros", "nans", "infs")
"""The columns that a frame keeps, in the order of its rows."""

L2: Final = COLUMNS.index("l2")
NANS: Final = COLUMNS.index("nans")
INFS: Final = COLUMNS.index("infs")


@dataclass(frozen=True, slots=True)
class RankPart:
    """One STATS record in the layer order of its attempt.

    Args:
        rank: Global rank.
        index: (own layers,) position of each in the attempt's layers.
        ordered: Whether `index` follows the forward pass.
        values: Column to (own layers,) float64.
        scalars: Numbers of the whole step.
        labels: What the numbers are.
    """

    rank: int
    index: IndexArray
    ordered: bool
    values: Mapping[str, FloatArray]
    scalars: Mapping[str, float]
    labels: Mapping[str, object]

    @property
    def nonfinite(self) -> BoolArray:
        """(own layers,) whether the layer's gradient has a NaN or an Inf."""
        bad: BoolArray = ~np.isfinite(self.values["l2"])
        for name in ("nans", "infs"):
            if name in self.values:
                bad |= self.values[name] > 0
        return bad


@dataclass(frozen=True, slots=True)
class Frame:
    """A closed step. Where ranks disagree, the extremes are kept; the rules need no more.

    Args:
        step: Optimizer step.
        received_ns: When its last record came in.
        parts: The records it was made of.
        present: (layers,) whether any rank reported the layer.
        nonfinite: (layers,) whether any rank saw a NaN or an Inf there.
        l2_max: (layers,) largest L2 norm over ranks, NaN where absent or NaN.
        l2_min: (layers,) smallest L2 norm over ranks, NaN likewise.
        measured: Rows of `columns` that any rank reported.
        columns: (columns, layers) in the order of `COLUMNS`: l2 and linf and l1 as the largest
            over ranks, counts likewise; NaN where not measured.
        total_norm: Largest over ranks of the L2 norm of all layers together.
        loss: Mean over the ranks that gave one, NaN if one of them was NaN; None without any.
        coverage: Share of the ranks of the job that are in it.
    """

    step: int
    received_ns: int
    parts: tuple[RankPart, ...]
    present: BoolArray
    nonfinite: BoolArray
    l2_max: FloatArray
    l2_min: FloatArray
    measured: tuple[int, ...]
    columns: FloatArray
    total_norm: float
    loss: float | None
    coverage: float


@dataclass(slots=True)
class _OpenFrame:
    first_ns: int
    last_ns: int
    parts: dict[tuple[int, int], RankPart] = field(default_factory=dict)  # by rank and part
    complete_ranks: set[int] = field(default_factory=set)


class Assembler:
    """Collects the records of open steps of one attempt and closes them in order."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenFrame] = {}
        self._steps: list[int] = []  # heap of the open steps
        self._newest: dict[int, int] = {}  # rank -> its newest step
        self._num_held = 0
        self._awaited = -1  # the rank that the oldest frame was last seen to wait for
        self.last_closed = -1

    def __bool__(self) -> bool:
        """Whether frames wait."""
        return bool(self._open)

    def add(self, part: RankPart, stats: Stats, received_ns: int) -> bool:
        """Take in one record; return False when its step is closed already or has its like."""
        step, place = stats.step, (part.rank, stats.part)
        if step <= self.last_closed:
            return False
        frame = self._open.get(step)
        if frame is None:
            frame = self._open[step] = _OpenFrame(received_ns, received_ns)
            heappush(self._steps, step)
        elif place in frame.parts:
            return False
        frame.parts[place] = part
        self._num_held += 1
        frame.last_ns = received_ns
        if stats.part == stats.parts - 1:
            frame.complete_ranks.add(part.rank)
        self._newest[part.rank] = max(step, self._newest.get(part.rank, -1))
        return True

    def close(
        self, expected: set[int], now_ns: int, num_layers: int, world: int
    ) -> Iterator[Frame]:
        """Close, oldest first, each frame that has all *expected* ranks or waited long enough.

        A rank is done with a step once it sent all parts of it or anything newer: its records
        come in order.
        """
        while self._open:
            step = self._steps[0]
            frame = self._open[step]
            waiting = self._is_waiting(step, frame, expected)
            overdue = now_ns - frame.first_ns > LATENESS_NS or self._num_held > max(
                MAX_HELD_RECORDS, 16 * world
            )
            if waiting and not overdue:
                return
            del self._open[heappop(self._steps)]
            self._num_held -= len(frame.parts)
            self.last_closed = step
            yield merge(step, frame.last_ns, tuple(frame.parts.values()), num_layers, world)

    def _is_waiting(self, step: int, frame: _OpenFrame, expected: set[int]) -> bool:
        """Tell whether a rank is to come. With each record this is asked; mostly one answers it."""
        if self._awaited in expected and self._lacks(self._awaited, step, frame):
            return True
        for rank in expected:
            if self._lacks(rank, step, frame):
                self._awaited = rank
                return True
        return False

    def _lacks(self, rank: int, step: int, frame: _OpenFrame) -> bool:
        return rank not in frame.complete_ranks and self._newest.get(rank, -1) <= step


def merge(
    step: int, received_ns: int, parts: tuple[RankPart, ...], num_layers: int, world: int
) -> Frame:
    """Put the records of one step together."""
    rows = np.full((len(COLUMNS) + 1, num_layers), np.nan)  # the last one: smallest L2 norm
    present = np.zeros(num_layers, dtype=np.bool_)
    for number, alike in enumerate(_by_layout(parts)):
        index = alike[0].index
        block = _merge_alike(alike)
        if number:
            block = np.where(present[index], _merge_blocks(rows[:, index], block), block)
        rows[:, index] = block
        present[index] = True
    nonfinite = present & ~(np.isfinite(rows[L2]) & np.isfinite(rows[-1]))
    for row in (NANS, INFS):
        nonfinite |= rows[row] > 0
    names = set().union(*(part.values for part in parts))
    for array in (present, nonfinite, rows):
        array.flags.writeable = False  # readers in other threads hold them
    return Frame(
        step=step,
        received_ns=received_ns,
        parts=parts,
        present=present,
        nonfinite=nonfinite,
        l2_max=rows[L2],
        l2_min=rows[-1],
        measured=tuple(row for row, name in enumerate(COLUMNS) if name in names),
        columns=rows[:-1],
        total_norm=_largest(_total_norms(parts)),
        loss=_mean([part.scalars["loss"] for part in parts if "loss" in part.scalars]),
        coverage=len({part.rank for part in parts}) / world,
    )


def _by_layout(parts: tuple[RankPart, ...]) -> Iterable[list[RankPart]]:
    """Gather the records of the same layers: ranks mostly share one array as their index."""
    found: dict[int, list[RankPart]] = {}
    for part in parts:
        found.setdefault(id(part.index), []).append(part)
    return found.values()


def _merge_alike(parts: list[RankPart]) -> FloatArray:
    """Put records of the same layers together: (columns + 1, own layers) as in `merge`."""
    block = np.full((len(COLUMNS) + 1, len(parts[0].index)), np.nan)
    for row, name in enumerate(COLUMNS):
        values = [part.values[name] for part in parts if name in part.values]
        if values:
            # fmax passes over NaN, which stands for what was not measured. A NaN among the L2
            # norms is news, and must not hide behind another rank's number.
            block[row] = reduce(np.maximum if row == L2 else np.fmax, values)
    block[-1] = reduce(np.minimum, [part.values["l2"] for part in parts])
    return block


def _merge_blocks(one: FloatArray, other: FloatArray) -> FloatArray:
    """Put blocks of `_merge_alike` together, for layers that are in both."""
    both: FloatArray = np.fmax(one, other)
    both[L2] = np.maximum(one[L2], other[L2])
    both[-1] = np.minimum(one[-1], other[-1])
    return both


def _total_norms(parts: tuple[RankPart, ...]) -> list[float]:
    """L2 norm over all layers of each rank, over its parts together."""
    layers: dict[int, list[FloatArray]] = {}
    for part in parts:
        layers.setdefault(part.rank, []).append(part.values["l2"])
    return [total_norm(own[0] if len(own) == 1 else np.concatenate(own)) for own in layers.values()]


def total_norm(l2: FloatArray) -> float:
    """Return the L2 norm of the layers together: √Σl2², scaled so that no square overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        squared = float(np.dot(l2, l2))
    if 1e-200 < squared < 1e200:
        return math.sqrt(squared)
    largest = float(np.abs(l2).max(initial=0.0))
    if not math.isfinite(largest) or largest == 0.0:
        return largest
    return largest * float(np.sqrt(np.square(l2 / largest).sum()))


def _largest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values, default=math.nan)


def _mean(values: list[float]) -> float | None:
    # Divided first: the sum of finite losses may overflow.
    return sum(value / len(values) for value in values) if values else None
