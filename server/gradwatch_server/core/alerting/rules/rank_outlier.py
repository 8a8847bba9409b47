"""Ranks whose own gradient of a layer is far larger than that of the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.evaluation import NUM_BEFORE, Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import CLEAR_STEPS, Limit, Sign, Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.local_norms import RankNorms, local_norms
from gradwatch_wire.health import Severity

FRAMES: Final = 8
LEAST: Final = 6
"""Frames of the last 8 in which a rank must stand out for the alert to last."""

MIN_RANKS: Final = 3
"""Of two ranks nobody knows which is unusual."""

MIN_SHARE: Final = 1e-4
"""Of the largest layer's norm: what is smaller may be rounding, or a layer that hardly any rank
has reached."""

MAX_UNSTEADY: Final = 0.1
"""Share of the frames before the last 8 in which a layer's ranks may be as far apart, for it to be
judged: rows of a table that few samples touch differ from rank to rank by nature."""

WEIGHT: Final = 0.03
"""Of a frame in that share."""

NOBODY: Final = -1


@dataclass(slots=True)
class OutlierMemory:
    """Rank that was far above the others in each layer, in the last frames.

    Attributes:
        ratio: (layers,) the largest local norm over the median of the others', 0 where not known.
        rank: (layers,) the rank that has it.
        norm: (layers,) its norm.
        unsteady: (layers,) share of the frames before the last 8 in which some rank was far above.
        steps: (8,) steps of the last frames, the newest first.
        above: (8, layers) rank that was far above the others in each of them, -1 if none was.
    """

    ratio: FloatArray = field(default_factory=lambda: np.zeros(0))
    rank: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    norm: FloatArray = field(default_factory=lambda: np.zeros(0))
    unsteady: FloatArray = field(default_factory=lambda: np.zeros(0))
    num_frames: int = 0
    steps: IndexArray = field(default_factory=lambda: np.full(FRAMES, -1, dtype=np.int64))
    above: IndexArray = field(default_factory=lambda: np.full((FRAMES, 0), NOBODY, dtype=np.int64))

    def _forget(self, num_layers: int) -> None:
        self.ratio, self.norm = np.zeros(num_layers), np.zeros(num_layers)
        self.rank = np.full(num_layers, NOBODY, dtype=np.int64)

    def update(self, step: int, num_layers: int, gathered: list[RankNorms], ratio: float) -> None:
        """Take in a frame with local norms; *ratio* is what counts as above the others."""
        self._forget(num_layers)
        if (more := num_layers - self.above.shape[1]) > 0:
            self.above = np.pad(self.above, ((0, 0), (0, more)), constant_values=NOBODY)
            self.unsteady = np.append(self.unsteady, np.zeros(more))
        if self.num_frames >= FRAMES:
            weight = max(WEIGHT, 1.0 / (self.num_frames - FRAMES + 1))
            self.unsteady += weight * ((self.above[-1] != NOBODY) - self.unsteady)
        self.num_frames += 1
        for norms in gathered:
            self._compare(norms)
        self.above = np.roll(self.above, 1, axis=0)
        self.above[0] = NOBODY
        self.above[0, :num_layers] = np.where(self.ratio > ratio, self.rank, NOBODY)
        self.steps = np.roll(self.steps, 1)
        self.steps[0] = step

    def _compare(self, norms_by_rank: RankNorms) -> None:
        if len(norms_by_rank.ranks) < MIN_RANKS:
            return
        known = np.isfinite(norms_by_rank.l2).all(axis=0) & (norms_by_rank.l2 >= 0.0).all(axis=0)
        norms = np.where(known, norms_by_rank.l2, 0.0)
        usual = _medians_of_others(norms)
        known &= usual > MIN_SHARE * usual.max(initial=0.0)
        worst = norms.argmax(axis=0)
        largest = norms[worst, np.arange(norms.shape[1])]
        with np.errstate(over="ignore"):
            self.ratio[norms_by_rank.index] = np.where(
                known, largest / np.where(known, usual, 1.0), 0.0
            )
        self.rank[norms_by_rank.index] = norms_by_rank.ranks[worst]
        self.norm[norms_by_rank.index] = largest

    def lasting(self) -> BoolArray:
        """Return (layers,) whether one rank was above the others in 6 of the last 8 frames."""
        above = self.above[:, : len(self.rank)]
        enough: BoolArray = ((above == above[0]) & (above != NOBODY)).sum(axis=0) >= LEAST
        return enough

    def first_step(self, layer: int) -> int:
        """Return the first of the last 8 frames in which the layer's rank was above the others."""
        is_same = self.above[:, layer] == self.above[0, layer]
        return (
            int(self.steps[is_same].min()) if self.above[0, layer] != NOBODY else int(self.steps[0])
        )


class RankOutlierRule(LayerRule):
    """One rank's own gradient of a layer far above that of the other ranks.

    It needs `attach(local=True)` and three ranks or more with the same layers. The largest local
    norm is compared with the median of the others': more than `ratio` times that in 6 of 8 frames
    on the same rank is a warning, more than `factor` times in one frame is info, as a single hard
    sample may do as much. Layers whose usual local norm is below 1/10,000 of the largest layer's
    are not judged (rounding), nor those in which some rank mostly is that far above, as in tables
    of which each batch touches a few rows. `nonfinite` tells of what is non-finite.

    It finds large faults of hardware, and data that one rank alone has. `origin.value` is the
    rank's local norm, `origin.usual` the median of the others, `origin.step` the first of those
    frames.
    """

    name = "rank_outlier"
    signs = Sign.LOCAL_NORMS
    memory: ClassVar[type | None] = OutlierMemory
    follows = ("nonfinite", "exploding")
    formula = """
        with r the largest local norm of a layer over the median of the other ranks': `r > ratio` in
        6 of 8 frames on the same rank, or `r > factor` in one.
    """
    tuning = """
        Raise `ratio` where ranks train on different data, such as a language each, or have few
        samples each. Raise `factor` where single samples dominate a batch.
    """
    source = """
        Measured with 4 sequences per rank, in 5,400 steps: r is above 5 in some layer in 1.4 % of
        steps, and at most 10; above 3 in 6 of 8 frames on one rank it never was. Of 15 nodes that
        computed wrongly the worst changed the gradient by 5 % of its norm (arXiv 2502.12340), which
        no norm shows.
    """

    clear_steps: Steps = Field(8, description=CLEAR_STEPS)
    ratio: Limit = Field(3.0, description="Times the median of the other ranks, where it lasts.")
    factor: Limit = Field(30.0, description="Times the median of the other ranks, in one frame.")

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return the layers in which one rank is far above the others, (layers,)."""
        gathered, num_layers = local_norms(observation), len(observation.present)
        if not gathered:
            return None
        memory = context.memory(self.name, OutlierMemory)
        memory.update(observation.step, num_layers, gathered, self.ratio)
        above: BoolArray = memory.ratio > self.factor
        return (above | memory.lasting()) & (memory.unsteady[:num_layers] <= MAX_UNSTEADY)

    def severity_with(self, frame: Frame, context: Context, in_a_row: int) -> Severity:
        """Return info for what has not lasted yet."""
        memory = context.memory(self.name, OutlierMemory)
        return self.severity if memory.lasting().any() else Severity.INFO

    def seen(self, frame: Frame) -> BoolArray:
        """Return the layers whose local norms are known, (layers,)."""
        seen = np.zeros(len(frame.present), dtype=np.bool_)
        for norms in local_norms(frame):
            seen[norms.index] = True
        return seen

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return the layer in which a rank is farthest above the others, and that rank."""
        memory = context.memory(self.name, OutlierMemory)
        layers = np.flatnonzero(raised)
        layer = int(layers[np.argmax(memory.ratio[layers])])
        rank, norm = int(memory.rank[layer]), float(memory.norm[layer])
        return Origin(
            step=memory.first_step(layer),
            rank=rank,
            ranks=(rank,),
            layer=context.names[layer],
            kind=None,
            value=norm,
            threshold=None,
            before=context.window.before(layer, NUM_BEFORE),
            usual=norm / float(memory.ratio[layer]),
            notes=(f"{len(layers)} of {len(raised)} layers",),
        )


def _medians_of_others(norms: FloatArray) -> FloatArray:
    """Return (layers,) the median over all ranks but the one with the largest norm."""
    others = np.sort(norms, axis=0)[:-1]
    middle = len(others) // 2
    if len(others) % 2:
        median: FloatArray = others[middle]
    else:
        median = 0.5 * others[middle - 1] + 0.5 * others[middle]
    return median
