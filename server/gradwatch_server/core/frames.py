"""Frames: all ranks' statistics of one step, put together and closed in the order of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
            waiting = any(
                self._newest.get(rank, -1) <= step for rank in expected - frame.complete_ranks
            )
            overdue = now_ns - frame.first_ns > LATENESS_NS or self._num_held > max(
                MAX_HELD_RECORDS, 16 * world
            )
            if waiting and not overdue:
                return
            del self._open[heappop(self._steps)]
            self._num_held -= len(frame.parts)
            self.last_closed = step
            yield merge(step, frame.last_ns, tuple(frame.parts.values()), num_layers, world)


def merge(
    step: int, received_ns: int, parts: tuple[RankPart, ...], num_layers: int, world: int
) -> Frame:
    """Put the records of one step together."""
    columns = np.full((len(COLUMNS), num_layers), np.nan)
    present = np.zeros(num_layers, dtype=np.bool_)
    nonfinite = np.zeros(num_layers, dtype=np.bool_)
    l2_min = np.full(num_layers, np.nan)
    for part in parts:
        index = part.index
        present[index] = True
        nonfinite[index] |= part.nonfinite
        l2_min[index] = np.fmin(l2_min[index], part.values["l2"])
        for row, name in enumerate(COLUMNS):
            if name in part.values:
                columns[row, index] = np.fmax(columns[row, index], part.values[name])
    # fmax passes over NaN; a NaN that a rank reported must not hide behind another's number.
    for part in parts:
        l2 = part.values["l2"]
        nan = np.isnan(l2)
        if nan.any():
            columns[L2, part.index[nan]] = np.nan
            l2_min[part.index[nan]] = np.nan
    for array in (present, nonfinite, l2_min, columns):
        array.flags.writeable = False  # readers in other threads hold them
    return Frame(
        step=step,
        received_ns=received_ns,
        parts=parts,
        present=present,
        nonfinite=nonfinite,
        l2_max=columns[L2],
        l2_min=l2_min,
        measured=tuple(
            row for row, name in enumerate(COLUMNS) if any(name in part.values for part in parts)
        ),
        columns=columns,
        total_norm=_largest(_total_norms(parts)),
        loss=_mean([part.scalars["loss"] for part in parts if "loss" in part.scalars]),
        coverage=len({part.rank for part in parts}) / world,
    )


def _total_norms(parts: tuple[RankPart, ...]) -> list[float]:
    """L2 norm over all layers of each rank, over its parts together."""
    layers: dict[int, list[FloatArray]] = {}
    for part in parts:
        layers.setdefault(part.rank, []).append(part.values["l2"])
    return [total_norm(own[0] if len(own) == 1 else np.concatenate(own)) for own in layers.values()]


def total_norm(l2: FloatArray) -> float:
    """Return the L2 norm of the layers together: √Σl2², scaled so that no square overflows."""
    if not l2.size:
        return 0.0
    largest = float(l2.max())
    if not 1e-100 < largest < 1e100:
        if not np.isfinite(largest) or largest == 0.0:
            return largest
        return largest * float(np.sqrt(np.square(l2 / largest).sum()))
    return float(np.sqrt(np.dot(l2, l2)))


def _largest(values: list[float]) -> float:
    return float(np.max(values)) if values else float("nan")


def _mean(values: list[float]) -> float | None:
    # Divided first: the sum of finite losses may overflow.
    return sum(value / len(values) for value in values) if values else None
