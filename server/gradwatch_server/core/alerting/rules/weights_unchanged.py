"""Weights that do not change though they have a gradient and steps are taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.evaluation import Context, Evaluation
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Sign, Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.silent_bugs import WARNING_STEPS, is_taken
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, grown
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.columns import L2, UNCHANGED, WEIGHT_RMS
from gradwatch_wire.health import Severity

PRECISION: Final = 2.0**-24
"""Relative size of the largest change that a float32 loses to rounding."""

PRECISIONS: Final = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The same of other types, by the dtype of the gradient."""

VECTOR_ELEMENTS: Final = 1 << 16
"""Elements of the largest bias or scale. A larger layer is a matrix: of 4,096 of its elements some
are near 0 and move, however coarse the type is."""

MOMENTUM: Final = 10.0
"""Gradients of plain SGD that momentum adds up. Of Adam an update is about the learning rate."""


@dataclass(slots=True)
class UnchangedMemory:
    """Steps since which each layer's weights have not changed.

    Attributes:
        since: (layers,) first step without a change, -1 of a layer that moves.
        sizes: (layers,) root mean square of the weights when they were read last, NaN before.
    """

    since: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sizes: FloatArray = field(default_factory=lambda: np.zeros(0))

    def update(self, step: int, still: BoolArray, sizes: FloatArray) -> BoolArray:
        """Return (layers,) which did not change in a step, nor since they were read before.

        Args:
            still: (layers,) whether none of what was read has changed.
            sizes: (layers,) root mean square of the weights, NaN of those that were not read. Where
                it is another than before, they have changed in a step between.
        """
        if len(still) > len(self.since):
            self.since = grown(self.since, len(still), -1)
            self.sizes = grown(self.sizes, len(still), np.nan)
        known = ~np.isnan(sizes)
        has_moved = known & ~np.isnan(self.sizes) & (sizes != self.sizes)
        self.since[(known & ~still) | has_moved] = -1
        self.since[still & (self.since < 0)] = step
        self.sizes[known] = sizes[known]
        unmoved: BoolArray = still & ~has_moved
        return unmoved


class WeightsUnchangedRule(LayerRule):
    """A layer has a gradient, steps are taken, and its weights stay as they are, bit for bit.

    The client reads up to 4,096 elements of each layer before and after the optimizer's step, in
    one step of eight (`updates_every`). None of them has changed, neither in that step nor since
    they were read before, and their gradient is not zero everywhere: the parameter group has a
    learning rate of 0, the optimizer holds another copy, or each update is lost to rounding, as in
    bfloat16 without float32 master weights. Layers whose `requires_grad` is off have no gradient,
    and are never told.

    A learning rate or a gradient so small that float32 would lose the update is passed over:
    schedules end so. Biases and scales of bfloat16 and float16 that lose theirs stay `info`:
    trainings in pure bfloat16 have some, and learn.
    """

    name = "weights_unchanged"
    spoils_steps = False
    signs = Sign.SILENT_BUG
    memory: ClassVar[type | None] = UnchangedMemory
    yields_to = ("vanishing",)
    follows = ("not_learning", "nonfinite")
    formula = """
        `unchanged = 1`, `l2 > 0` and `weight_rms` as before in `for_steps` of the frames that have
        the column `unchanged`, in a row, unless
        `lr * min(10 * rms of the gradient, 1) < 2^-24 * weight_rms`.
    """
    tuning = """
        A group that is kept still on purpose, by a learning rate of 0, is left out by
        `layers = ["!backbone.*"]`; better, switch its `requires_grad` off.
    """
    source = """
        Gradient and loss of such a run look healthy: reported for optimizers that were made before
        the model was wrapped, and for bfloat16 weights whose updates are below their precision. A
        comparison of equal numbers: there is no threshold to choose.
    """

    for_steps: Steps = Field(4, description="Frames with the column `unchanged` until it fires.")
    warning_steps: Steps = Field(200, description=WARNING_STEPS)

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return the layers whose weights did not change, (layers,)."""
        if UNCHANGED not in observation.measured or not is_taken(observation):
            return None
        unchanged = observation.column(UNCHANGED)
        still: BoolArray = (unchanged == 1.0) & (observation.column(L2) > 0.0)
        if still.any():
            still &= ~self._is_rounded(observation, context, PRECISION)
        memory = context.memory(self.name, UnchangedMemory)
        sizes = np.where(np.isnan(unchanged), np.nan, observation.column(WEIGHT_RMS))
        return memory.update(observation.step, still, sizes)

    def seen(self, frame: Frame) -> BoolArray:
        """Return the layers whose weights were read, (layers,)."""
        known = ~np.isnan(frame.column(UNCHANGED))
        return known if is_taken(frame) else np.zeros_like(known)

    def _is_rounded(
        self, frame: Frame, context: Context, precision: float | FloatArray
    ) -> BoolArray:
        """Return (layers,) where a type of such precision loses the update, or it is not known."""
        if frame.lr is None or len(context.numel) < len(frame.present):
            return np.ones(len(frame.present), dtype=np.bool_)
        numel = context.numel[: len(frame.present)].clip(1.0)
        with np.errstate(over="ignore"):  # beyond 1 it does not matter how large it is
            gradient = MOMENTUM * frame.column(L2) / np.sqrt(numel)
        least = frame.lr * np.minimum(gradient, 1.0)
        small: BoolArray = ~(least >= precision * frame.column(WEIGHT_RMS))
        return small

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield an evaluation of each group; how much it matters its own layers say."""
        for each in super().evaluate(observation, raised, context):
            severity = partial(self._severity_of, observation, context, each.verdict.raised)
            yield replace(each, severity=severity)

    def _severity_of(self, frame: Frame, context: Context, raised: BoolArray, _: int) -> Severity:
        since = context.memory(self.name, UnchangedMemory).since
        layers = np.flatnonzero(raised)
        lasting = layers[frame.step - since[layers] >= self.warning_steps]
        if not len(lasting) or self.name in context.expected:
            return Severity.INFO
        precision = np.array([PRECISIONS.get(dtype, PRECISION) for dtype in context.dtypes])
        is_lost = self._is_rounded(frame, context, precision[: len(frame.present)])
        is_lost &= context.numel[: len(is_lost)] <= VECTOR_ELEMENTS
        return Severity.INFO if is_lost[lasting].all() else self.severity

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return the first step without a change, and the layer if it is one."""
        since = context.memory(self.name, UnchangedMemory).since
        origin = super().origin(frame, context, raised)
        first = int(since[np.flatnonzero(raised)].min())
        is_one = np.count_nonzero(raised) == 1
        return replace(origin, step=first, layer=origin.layer if is_one else None)
