"""Modules whose gradient vanishes: below a limit, by depth, or far below what it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np
from pydantic import Field, model_validator

from gradwatch_server.core.alerting.evaluation import Context, Evaluation
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import FOR_STEPS, HealthShare, Limit, Sign, Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.module import ModuleRule, layers_of, ranks_with
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.judge.activity import WAS_ALIVE, far_below
from gradwatch_server.core.judge.deviations import DeviationKind
from gradwatch_server.core.judge.findings import DOWN, Findings
from gradwatch_wire.columns import L2
from gradwatch_wire.health import VANISHING_THRESHOLD, Severity

STILL_FRAMES: Final = 8


class VanishingRule(ModuleRule):
    """A module whose gradient is below `limit` in all its layers, or far below what it was.

    A module is the layers that share a name up to the last dot: the bias of an attention's keys has
    a gradient of zero by mathematics, and its weight is alive. A module vanishes where

    * the L2 norm of every layer of it is below `limit` on some rank, or
    * it is 10,000 times below the upper half of the modules, per element, in each of its first 16
      frames, in the front half of the model, or
    * its norm, alone and relative to all modules, fell below a quarter in the mean of 16 or 64
      frames and the loss is no better; or all modules fell to a tenth within four frames.

    It is `info` where the module never was above ten times the limit, critical where all modules
    that were alive are below the limit or the loss has not moved for 8 frames either. A module that
    is exactly zero after it was alive is the matter of the rule `dead_layer`; `/health` counts it
    here all the same. A layer that explodes on another rank counts as exploding. The origin is the
    smallest layer below the limit, or the module that fell farthest, with the step at which it
    began to fall.
    """

    name = "vanishing"
    signs = Sign.UNUSUAL | Sign.SMALL
    recurs = True
    follows = (
        "nonfinite",
        "exploding",
        "dead_layer",
        "loss_scaler",
        "rank_divergence",
        "layer_missing",
        "loss",
    )
    sign = -1
    kinds: ClassVar[tuple[DeviationKind, ...]] = DOWN
    yields_to = ("exploding",)
    health = HealthShare.VANISHING
    further_counts: ClassVar = {"dead": lambda frame: int(np.count_nonzero(frame.l2_max == 0.0))}
    formula = """
        every layer of a module has `l2 < limit` on some rank, held while each has `l2 < clear`; or
        the mean of 16 or 64 frames is below the record by more than a margin
        ([the detector](alerts.md#the-detector)), and below a quarter of what was usual.
    """
    tuning = """
        Lower `limit` and `clear` together where a loss is divided by a large number: every norm is
        small then.
    """
    source = """
        1e-7 is the limit of the documents that gradwatch was made from. Biases that are zero by
        mathematics were at most 4.4e-8 of the weight beside them.
    """

    limit: Limit = Field(VANISHING_THRESHOLD, description="L2 norm below which a layer vanishes.")
    clear: Limit = Field(
        2 * VANISHING_THRESHOLD, description="L2 norm at or above which a layer is alive again."
    )
    for_steps: Steps = Field(3, description=FOR_STEPS)
    clear_steps: Steps = Field(
        3, description="Consecutive frames that must be good before a firing alert is resolved."
    )

    @model_validator(mode="after")
    def _hysteresis(self) -> VanishingRule:
        if self.clear < self.limit:
            msg = f"clear ({self.clear:g}) must not be below limit ({self.limit:g})"
            raise ValueError(msg)
        return self

    def seen(self, frame: Frame) -> BoolArray:
        """Return the layers with a finite norm, (layers,): a NaN is no small one."""
        return frame.present & ~frame.nonfinite

    @property
    def floor(self) -> float:
        return self.limit

    def threshold(self) -> float:
        return self.limit

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return the layers that vanish, or stay far below what was usual; None if none does."""
        raised = super().raised(observation, context)
        low = self._below(observation, context, self.limit)
        if not np.count_nonzero(low):  # nearly always
            return raised
        layers = layers_of(context, low, observation)
        return layers if raised is None else raised | layers

    def raised_layers(self, frame: Frame, findings: Findings, context: Context) -> BoolArray | None:
        """Return (layers,) those of modules below the limit, cut off by depth, or fallen."""
        modules = findings.falling | self._below(frame, context, self.limit)
        modules |= findings.low  # counted by `for_steps`
        deep = context.judge.state.smallness.is_deep
        if np.count_nonzero(deep):
            modules |= deep & far_below(findings.norms, context.judge.numel(context.numel))
        modules &= ~self._died(context)
        if not np.count_nonzero(modules):  # nearly always
            return None
        return layers_of(context, modules, frame)

    def held_layers(self, frame: Frame, context: Context) -> BoolArray:
        """Return the layers of modules below `clear`, (layers,)."""
        low = self._below(frame, context, self.clear) & ~self._died(context)
        return layers_of(context, low, frame)

    def held_modules(self, findings: Findings) -> BoolArray:
        """Return (modules,) those still below what was usual before."""
        return findings.low

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return critical where nothing is left, info where nothing came down."""
        judge, findings = context.judge, context.findings
        smallness = judge.state.smallness
        modules = judge.modules.any_of(raised)
        came_down = smallness.largest > WAS_ALIVE * self.limit
        if not (modules & (came_down | smallness.is_deep)).any():
            return Severity.INFO
        low = self._below(frame, context, self.limit)
        there = came_down & ~np.isnan(findings.norms)
        nothing_left = there.any() and not (there & ~(low & (findings.norms > 0.0))).any()
        if nothing_left or smallness.still_frames >= STILL_FRAMES:
            return Severity.CRITICAL
        return super().severity_in(frame, context, raised, in_a_row)

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return the smallest layer below the limit, or the module that fell farthest."""
        modules = context.judge.modules.any_of(raised)
        low = modules & self._below(frame, context, self.limit)
        if low.any() or context.findings.largest(*self.kinds) is None:
            among = raised & layers_of(context, low, frame) if low.any() else raised
            return LayerRule.origin(self, frame, context, among)
        return super().origin(frame, context, raised)

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield an evaluation of each group of layers, without those that died."""
        died = self._died(context)
        if np.count_nonzero(died):
            raised = raised & ~layers_of(context, died, observation)
        yield from super().evaluate(observation, raised, context)

    def excess_in(self, frame: Frame, context: Context) -> FloatArray:
        """Return by what factor each layer is below the limit, (layers,), Inf for a norm of 0."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(self.limit / frame.l2_min)

    @classmethod
    def values(cls, frame: Frame) -> FloatArray:
        """Return the smallest norm over ranks, (layers,)."""
        return frame.l2_min

    @classmethod
    def worst_first(cls, frame: Frame, flagged: BoolArray) -> IndexArray:
        """Return the flagged layers, the smallest first."""
        indices = np.flatnonzero(flagged)
        return indices[np.argsort(frame.l2_min[indices], kind="stable")]

    def key(self, group: str, frame: Frame, context: Context) -> str:
        """Return what ids are made of: two falls may be found to have begun at one step."""
        return f"{group} {frame.step}" if np.count_nonzero(context.findings.falling) else ""

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        if frame.l2_min[index] < self.limit:
            return ranks_with(frame, index, lambda part: part.values[L2] < self.limit)
        return super().find_ranks(frame, index)

    def _below(self, frame: Frame, context: Context, limit: float) -> BoolArray:
        """Return (modules,) whether all layers of each are below a limit, on some rank each."""
        small: BoolArray = frame.l2_min < limit  # NaN where absent
        if np.count_nonzero(small):
            small &= ~frame.nonfinite
        modules = context.judge.modules
        if not np.count_nonzero(small):
            return np.zeros(len(modules.names), dtype=np.bool_)
        return modules.all_of(small, frame.present)

    def _died(self, context: Context) -> BoolArray:
        """Return (modules,) those that are zero, having been alive: a matter of `dead_layer`."""
        largest = context.judge.state.smallness.largest
        died: BoolArray = (context.findings.norms == 0.0) & (largest > self.limit)
        return died
