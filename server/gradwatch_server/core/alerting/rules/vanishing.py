"""Modules whose gradient vanishes: below a limit, or far below what it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from pydantic import Field, model_validator

from gradwatch_server.core.alerting.baselines.judgement import FIRST_MODULE, LOSS, Judgement
from gradwatch_server.core.alerting.baselines.reference import Reference
from gradwatch_server.core.alerting.evaluation import Context, Evaluation
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import FOR_STEPS, HealthShare, Limit, Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.module import ModuleRule, layers_of, ranks_with
from gradwatch_server.core.alerting.rules.slow import began_earlier
from gradwatch_server.core.alerting.wording import comparison, place
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, grown
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.packing import pack, unpack
from gradwatch_wire.columns import L2
from gradwatch_wire.health import VANISHING_THRESHOLD, Severity

WAS_ALIVE: Final = 10.0
"""Times the limit: a module that was once above it has come down."""

STILL: Final = 1e-6
"""A loss that moves less than this share of itself does not move."""

STILL_FRAMES: Final = 8

LN_2: Final = 0.6931471805599453

Ratio = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class VanishingMemory:
    """How large each module was, and which ones stay far below what was usual.

    Attributes:
        largest: (modules,) largest norm so far, NaN without any.
        low: (modules,) whether it is below the limit in the latest frame; not saved.
        away: (modules,) whether it stays far below what was usual.
        with_loss: (modules,) whether it fell so far while the loss fell as well.
        run: (series,) frames in a row that each is far below what is usual.
        still: Frames in a row in which the loss did not move.
        any_far: Whether any module is far below what was usual, or stays so.
    """

    def __init__(self) -> None:
        self.largest: FloatArray = np.zeros(0)
        self.low = np.zeros(0, dtype=np.bool_)
        self.away = np.zeros(0, dtype=np.bool_)
        self.with_loss = np.zeros(0, dtype=np.bool_)
        self.still = 0
        self._loss = math.nan
        self.run: IndexArray = np.zeros(0, dtype=np.int64)
        self._reference = Reference()
        self.any_far = False

    def follow(self, judgement: Judgement, ratio: float, clear: float, frames: int) -> None:
        """Take in a frame; *ratio* and *clear* are logarithms of shares of the usual norm."""
        number = len(judgement.samples) - FIRST_MODULE
        if number > len(self.largest):
            self.largest = grown(self.largest, number, math.nan)
            self.with_loss = grown(self.with_loss, number, fill=False)
            self.away = grown(self.away, number, fill=False)
            self.run = grown(self.run, number + FIRST_MODULE, 0)
        self._follow_loss(float(judgement.samples[LOSS]), is_log=judgement.is_log_loss)
        if not self.any_far and judgement.lowest_rise >= ratio:  # nearly always
            return
        far: BoolArray = judgement.rise < ratio
        if np.count_nonzero(far):
            far &= judgement.is_known
            far[:FIRST_MODULE] = False
        if not self.any_far and not np.count_nonzero(far):  # nearly always
            return
        self.run = np.where(far, self.run + 1, 0)
        left = self.run >= frames
        self.away = self._reference.follow(judgement, left, clear)[FIRST_MODULE:]
        self.with_loss[left[FIRST_MODULE:] & (_loss_rise(judgement) < -LN_2)] = True
        self.with_loss &= self.away
        self._look_again()

    def _look_again(self) -> None:
        self.any_far = bool(np.count_nonzero(self.run) or np.count_nonzero(self.away))

    def _follow_loss(self, loss: float, *, is_log: bool) -> None:
        moved = abs(loss - self._loss)
        self.still = self.still + 1 if moved <= STILL * (1.0 if is_log else abs(loss)) else 0
        self._loss = loss

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "largest": pack(self.largest),
            "with_loss": pack(self.with_loss),
            "still": self.still,
            "loss": self._loss,
            "away": pack(self.away),
            "run": pack(self.run),
            "reference": self._reference.state_dict(),
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self.largest = np.array(unpack(plain["largest"]), dtype=np.float64)
        self.with_loss = np.array(unpack(plain["with_loss"]), dtype=np.bool_)
        self.still, self._loss = plain["still"], plain["loss"]
        self.away = np.array(unpack(plain["away"]), dtype=np.bool_)
        self.run = np.array(unpack(plain["run"]), dtype=np.int64)
        self._reference.load_state_dict(plain["reference"])
        self._look_again()


class VanishingRule(ModuleRule):
    """A module whose gradient is below `limit` in all its layers, or far below what it was.

    A module is the layers that share a name up to the last dot. One alone may be small: the bias of
    an attention's keys has a gradient of zero by mathematics, and its weight is alive. A module
    vanishes where

    * the L2 norm of every layer of it is below `limit` on some rank, or
    * its norm was below `ratio` times the usual for `ratio_steps` frames in a row, after 32 frames.
      It is over at `clear_ratio` times what was usual before, or after 256 frames.

    It is `info` where the module never was above ten times the limit, so that there is nothing
    that it came down from, and where the loss fell to half with it: a task that is solved has small
    gradients. A module that is exactly zero after it was alive is the matter of the rule
    `dead_layer`, which knows idle experts; `/health` counts it here all the same. It is critical
    where all modules that were alive are below the limit, or where the loss has not moved for 8
    frames either.

    A layer that explodes on another rank counts as exploding. Its origin is the smallest layer
    below the limit, or the module that fell farthest, with the step at which it began to fall.
    """

    name = "vanishing"
    recurs = True
    follows = (
        "nonfinite",
        "exploding",
        "spike",
        "dead_layer",
        "skipped_steps",
        "loss_scale",
        "rank_divergence",
        "loss",
    )
    sign = -1
    yields_to = ("exploding",)
    health = HealthShare.VANISHING
    further_counts: ClassVar = {
        "dead": lambda frame: int(np.count_nonzero(frame.l2_max == 0.0)),
    }
    formula = """
        every layer of a module has `l2 < limit` on some rank, held while each has `l2 < clear`; or
        the module's norm is `norm < ratio * usual` for `ratio_steps` frames in a row, held while
        `norm < clear_ratio * usual`, with what was usual before it fell. Usual is the exponential
        of the mean in `spike`.
    """
    tuning = """
        Lower `limit` and `clear` together where a loss is divided by a large number: every norm is
        small then. Keep `ratio_steps` at several frames: the norms of healthy trainings fall to
        1/5,000 of their median in single ones. Lower `ratio` where modules come to rest in turn.
    """
    source = """
        1e-7 is the limit of the documents that gradwatch was made from. A module below a tenth of
        its usual norm for 8 frames was no false alarm in 100,800 healthy steps, for 3 frames it was
        three. Biases that are zero by mathematics were at most 4.4e-8 of the weight beside them.
    """

    limit: Limit = Field(VANISHING_THRESHOLD, description="L2 norm below which a layer vanishes.")
    clear: Limit = Field(
        2 * VANISHING_THRESHOLD, description="L2 norm at or above which a layer is alive again."
    )
    ratio: Ratio = Field(0.1, description="Share of a module's usual norm below which it vanishes.")
    clear_ratio: Ratio = Field(
        0.3, description="Share of it at or above which it is as it should be again."
    )
    ratio_steps: Steps = Field(
        8, description="Consecutive frames below that share before the alert fires."
    )
    for_steps: Steps = Field(3, description=FOR_STEPS)

    @model_validator(mode="after")
    def _hysteresis(self) -> VanishingRule:
        if self.clear < self.limit:
            msg = f"clear ({self.clear:g}) must not be below limit ({self.limit:g})"
            raise ValueError(msg)
        if self.clear_ratio < self.ratio:
            msg = f"clear_ratio ({self.clear_ratio:g}) must not be below ratio ({self.ratio:g})"
            raise ValueError(msg)
        return self

    def memory(self) -> VanishingMemory:
        """Return a new memory."""
        return VanishingMemory()

    def seen(self, frame: Frame) -> BoolArray:
        """Return the layers with a finite norm, (layers,): a NaN is no small one."""
        return frame.present & ~frame.nonfinite

    def threshold(self) -> float:
        """Return the limit."""
        return self.limit

    def excess(self, frame: Frame) -> FloatArray:
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

    def raised_modules(self, frame: Frame, judgement: Judgement, context: Context) -> BoolArray:
        """Return the modules below the limit, or far below what is usual, (modules,)."""
        memory = self._memory(context)
        # The lifecycle counts the rest: it fires after `for_steps` more.
        frames = max(1, self.ratio_steps - self.for_steps + 1)
        memory.follow(judgement, math.log(self.ratio), math.log(self.clear_ratio), frames)
        memory.low = _below(frame, judgement, self.limit)
        norms = judgement.norms
        np.fmax(memory.largest, norms, out=memory.largest)
        if not memory.any_far:
            return memory.low
        far: BoolArray = memory.away & (norms > 0.0)
        return memory.low | far

    def held_layers(self, frame: Frame, context: Context) -> BoolArray:
        """Return the layers of modules that are not alive yet, (layers,)."""
        judgement = context.judge(frame)
        held = _below(frame, judgement, self.clear) | self._memory(context).away
        return layers_of(judgement, held, frame) & self.seen(frame)

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield an evaluation of each group of layers, without those that died."""
        judgement, memory = context.judge(observation), self._memory(context)
        died = (judgement.norms == 0.0) & (memory.largest > self.limit)
        if died.any():
            raised = raised & ~layers_of(judgement, died, observation)
        yield from super().evaluate(observation, raised, context)

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return critical where nothing is left, info where nothing came down."""
        judgement, memory = context.judge(frame), self._memory(context)
        own = judgement.modules.any_of(raised)
        came_down = memory.largest > WAS_ALIVE * self.limit
        matter = own & came_down & ~(memory.with_loss & ~memory.low)
        if not matter.any():
            return Severity.INFO
        there = came_down & ~np.isnan(judgement.norms)
        nothing_left = not (there & ~(memory.low & (judgement.norms > 0.0))).any()
        if nothing_left or memory.still >= STILL_FRAMES:
            return Severity.CRITICAL
        return self.severity

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return the smallest layer below the limit, or the module that fell farthest."""
        judgement, memory = context.judge(frame), self._memory(context)
        own = judgement.modules.any_of(raised)
        if (own & memory.low).any():
            low = raised & layers_of(judgement, memory.low, frame)
            return LayerRule.origin(self, frame, context, low)
        module = self.worst_module(judgement, own)
        members = np.flatnonzero(judgement.modules.of_layer[: len(frame.present)] == module)
        found = replace(super().origin(frame, context, raised), threshold=None)
        least = max(1, self.ratio_steps - self.for_steps + 1)
        return began_earlier(found, frame, context, members, sign=self.sign, least_frames=least)

    def key(self, group: str, frame: Frame, context: Context, raised: BoolArray) -> str:
        """Return what ids are made of: two falls may be found to have begun at one step."""
        low = context.judge(frame).modules.any_of(raised) & self._memory(context).low
        return "" if low.any() else f"{group} {frame.step}"

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        """Return the ranks that show it."""
        if frame.l2_min[index] < self.limit:
            return ranks_with(frame, index, lambda part: part.values[L2] < self.limit)
        return super().find_ranks(frame, index)

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        if origin.threshold is not None or not origin.usual:
            return f"gradient of {place(origin)} has L2 norm {comparison(origin)}"
        share = origin.value / origin.usual
        return (
            f"gradient norm of {place(origin)} is down to {origin.value:.3g}, "
            f"{share:.2g} of the usual {origin.usual:.3g}"
        )

    def _memory(self, context: Context) -> VanishingMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, VanishingMemory)  # noqa: S101 - for the type checker
        return memory


def _below(frame: Frame, judgement: Judgement, limit: float) -> BoolArray:
    """Return (modules,) whether all layers of each are below a limit, on some rank each."""
    small: BoolArray = frame.l2_min < limit  # NaN where absent
    if np.count_nonzero(small):
        small &= ~frame.nonfinite
    if not np.count_nonzero(small):
        return np.zeros(len(judgement.modules.names), dtype=np.bool_)
    return judgement.modules.all_of(small, frame.present)


def _loss_rise(judgement: Judgement) -> float:
    """Return by how much the logarithm of the loss is above the usual one, 0 if not known."""
    known = judgement.is_log_loss and judgement.is_known[LOSS]
    return float(judgement.rise[LOSS]) if known else 0.0
