"""Gradient norms that slowly rise or fall, by ten times within the window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field, model_validator

from gradwatch_server.core.alerting.baselines.judgement import FIRST_MODULE, LOSS, Judgement
from gradwatch_server.core.alerting.baselines.logarithm import natural_log
from gradwatch_server.core.alerting.baselines.slow_ring import BLOCK, SlowRing
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.loss_harm import worse_with_loss
from gradwatch_server.core.alerting.rules.module import ModuleRule, layers_of, notes, worst_layer
from gradwatch_server.core.alerting.rules.slow import began_earlier
from gradwatch_server.core.alerting.rules.told import told_modules
from gradwatch_server.core.alerting.wording import place
from gradwatch_server.core.arrays import BoolArray, FloatArray, grown
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.packing import pack, unpack
from gradwatch_wire.health import Severity

EARLY_BLOCKS: Final = 4
LATE_BLOCKS: Final = 2
LEARNING_BLOCKS: Final = 4
"""The first blocks of a run are learning itself, and no level to drift from."""

DEVIATIONS: Final = 4.0
MIN_DEVIATION: Final = 0.1
LARGEST_OF_BLOCK: Final = 1.766
"""Expected largest of 16 normal samples, in deviations."""

SUDDEN: Final = 0.6
"""A change of which more than this share came from one block to the next is sudden, and told by
other rules."""

LOSS_ROSE: Final = 1.2
"""Times what it was: a loss that rises."""

LR_EXPONENT: Final = 0.5
"""With weight decay and normalisation norms settle at 1 / √rate (Defazio, arXiv 2506.02285)."""


class DriftMemory:
    """The slow ring, and which series drift since its last block.

    Attributes:
        ring: Medians and largest of blocks of 16 frames.
        trend: (series,) 1 of those that rise, -1 of those that fall, else 0.
        change: (series,) logarithm of the late level over the early one; not saved.
        loss_rises: Whether the loss rises slowly, too.
    """

    def __init__(self) -> None:
        self.ring = SlowRing()
        self.trend: FloatArray = np.zeros(0)
        self.change: FloatArray = np.zeros(0)
        self.loss_rises = False
        self._drifting: BoolArray = self.trend != 0.0
        self._lr: list[float] = []  # at the end of each block

    def follow(self, judgement: Judgement, lr: float | None, told: float, clear: float) -> None:
        """Take in a frame; *told* and *clear* are logarithms of ratios."""
        if len(judgement.samples) > len(self.trend):
            self.trend = grown(self.trend, len(judgement.samples), 0.0)
            self._drifting = self.trend != 0.0
        if not self.ring.add(judgement.samples):
            return
        self._lr = [*self._lr[-63:], math.nan if lr is None else lr]
        medians, maxima = self.ring.medians(), self.ring.maxima()
        first = max(0, LEARNING_BLOCKS - (self.ring.num_blocks - len(medians)))
        medians, maxima = medians[first:], maxima[first:]
        if len(medians) < EARLY_BLOCKS + LATE_BLOCKS:
            self.change = np.full(len(self.trend), math.nan)
            return
        level = _mean(medians[:EARLY_BLOCKS])
        deviation = _mean(maxima[:EARLY_BLOCKS] - medians[:EARLY_BLOCKS]) / LARGEST_OF_BLOCK
        deviation = np.maximum(deviation, MIN_DEVIATION)
        self.change = change = _mean(medians[-LATE_BLOCKS:]) - level
        if np.count_nonzero(self._drifting) or np.count_nonzero(np.abs(change) > told):
            sudden = _largest_step(medians) > SUDDEN * np.abs(change)
            far = (np.abs(change) > np.maximum(told, DEVIATIONS * deviation)) & ~sudden
            far &= (change < 0.0) | (change - self._rise_by_rate(len(medians)) > told)
            stays = (self.trend == np.sign(change)) & (np.abs(change) > clear)
            self.trend = np.where(far | stays, np.sign(change), 0.0)
            self._drifting = self.trend != 0.0
        least = max(math.log(LOSS_ROSE), DEVIATIONS * float(deviation[LOSS]))
        self.loss_rises = bool(judgement.is_log_loss and change[LOSS] > least)

    @property
    def drifting(self) -> BoolArray:
        """(series,) whether each drifts since the last block."""
        return self._drifting

    def _rise_by_rate(self, blocks: int) -> float:
        """Return the rise of a logarithmic norm that a falling learning rate explains."""
        rates = np.array([self._lr[max(0, len(self._lr) - blocks)], self._lr[-1]])
        early, late = natural_log(rates).tolist()
        if late == early or math.isnan(early):
            return 0.0
        # At a rate of zero nothing is learned, and what norms do says nothing.
        return math.inf if math.isnan(late) else max(0.0, LR_EXPONENT * (early - late))

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "ring": self.ring.state_dict(),
            "trend": pack(self.trend),
            "change": pack(self.change),
            "loss_rises": self.loss_rises,
            "lr": self._lr,
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self.ring.load_state_dict(plain["ring"])
        self.trend = np.array(unpack(plain["trend"]), dtype=np.float64)
        self._drifting = self.trend != 0.0
        self.change = np.array(unpack(plain["change"]), dtype=np.float64)
        self.loss_rises, self._lr = plain["loss_rises"], list(plain["lr"])


class DriftRule(ModuleRule):
    """A module's gradient norm that slowly rises to `ratio` times what it was, or falls as far.

    The median of the last 32 frames is compared with that of the first 64 of the last 512 frames,
    once every 16 frames; the first 64 of a run are not looked at. It must be 4 usual deviations
    away, and less than six tenths of the change may have come from one 16 frames to the next: what
    is sudden is told by other rules. A norm that rises while the learning rate falls is not told,
    as it does so in health, with weight decay and normalisation.

    It is `info`, as learning itself makes norms drift; a rise is a warning while the loss rises by
    a fifth or more as well, and each drift is while the mean of the loss over 16 frames has left
    its level (4 standard errors, see `loss`). It is over when the norm is within `clear_ratio`
    times what it then was at the beginning of the window.

    Its origin is the step at which the norm left its level, fitted to the last 512 frames, with how
    sure that is.
    """

    name = "drift"
    follows = ("nonfinite", "exploding", "spike", "loss", "vanishing")
    yields_to = ("exploding", "spike", "dead_layer", "vanishing", "zero_fraction")
    formula = """
        with x the natural logarithm of a module's norm, as medians of 16 frames, early the mean of
        the first 4 medians of 32, late that of the last 2: `|late - early| > max(ln ratio, 4 s)`,
        no two medians in a row apart by more than 0.6 of that, and of a rise also
        `late - early - 0.5 ln(early rate / late rate) > ln ratio`. s is what the largest of 16
        frames are above the medians, as deviations of a normal distribution, at least 0.1. It is
        held while `|late - early| > ln clear_ratio`.
    """
    tuning = """
        Raise `ratio` and `clear_ratio` where learning moves norms by more than ten times. It is no
        fault by itself: act on `warning` or worse, which is for rises that come with a rising loss,
        or limit it with `runs` to long trainings.
    """
    source = """
        Ten times within the window, whether sudden or not and at any rate, is up to 9 rises and 15
        falls in 100,000 healthy steps, by learning itself: hence `info`. That norms rise as the
        rate falls is Defazio's finding (arXiv 2506.02285): they settle at the root of decay over
        rate. The step is where a level and a slope fit best; its median error was at most 13 steps
        for ramps that grow by 0.5 % to 30 % a step.
    """

    ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] = Field(
        10.0, description="Times what it was, or as far down."
    )
    clear_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] = Field(
        5.0, description="Times what it was, at or below which it is no drift any more."
    )
    severity: Severity = Field(Severity.INFO, description="Severity of its alerts.")

    @model_validator(mode="after")
    def _hysteresis(self) -> DriftRule:
        if self.clear_ratio > self.ratio:
            msg = f"clear_ratio ({self.clear_ratio:g}) must not be above ratio ({self.ratio:g})"
            raise ValueError(msg)
        return self

    def memory(self) -> DriftMemory:
        """Return a new memory."""
        return DriftMemory()

    def raised_modules(self, frame: Frame, judgement: Judgement, context: Context) -> BoolArray:
        """Return the modules that drift, (modules,)."""
        memory = self._memory(context)
        memory.follow(judgement, frame.lr, math.log(self.ratio), math.log(self.clear_ratio))
        drifting = memory.drifting[FIRST_MODULE:]
        if np.count_nonzero(drifting):
            drifting = drifting & ~told_modules(context, len(drifting))
        return drifting

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return a warning where something rises and the loss with it, or the loss is harmed."""
        memory, modules = self._memory(context), context.baselines.modules
        rises = memory.trend[FIRST_MODULE:][modules.any_of(raised)] > 0.0
        if memory.loss_rises and rises.any():
            return Severity.WARNING
        return worse_with_loss(self.severity, context.judge(frame))

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return the module that drifted farthest, the layer in it, and where that began."""
        judgement, memory = context.judge(frame), self._memory(context)
        own = judgement.modules.any_of(raised)
        change = np.where(own, memory.change[FIRST_MODULE:], 0.0)
        module = int(np.argmax(np.nan_to_num(np.abs(change))))
        sign = 1 if memory.trend[FIRST_MODULE + module] > 0.0 else -1
        flagged = np.arange(len(own)) == module
        members = layers_of(judgement, flagged, frame)
        layer = worst_layer(frame, context, members, sign)
        ranks = self.find_ranks(frame, layer)
        early = context.window.recent(np.array([layer]), context.window.capacity)
        found = Origin(
            step=frame.step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=context.names[layer],
            kind=None,
            value=float(frame.l2_max[layer]),
            threshold=None,
            usual=_median(early[: EARLY_BLOCKS * BLOCK, 0]),
            notes=notes(frame, judgement, raised),
        )
        return began_earlier(
            found,
            frame,
            context,
            np.flatnonzero(members),
            sign=sign,
            least_frames=LATE_BLOCKS * BLOCK,
        )

    def key(self, group: str, frame: Frame, context: Context, raised: BoolArray) -> str:
        """Return what ids are made of: two drifts may be found to have begun at one step."""
        return f"{group} {frame.step}"

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        if not origin.usual:
            return f"gradient norm of {place(origin)} drifts, {origin.value:.3g} by now"
        way = "up" if origin.value > origin.usual else "down"
        return (
            f"gradient norm of {place(origin)} drifts {way}, "
            f"from {origin.usual:.3g} to {origin.value:.3g}"
        )

    def _memory(self, context: Context) -> DriftMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, DriftMemory)  # noqa: S101 - for the type checker
        return memory


def _mean(rows: FloatArray) -> FloatArray:
    """Return (series,) means over rows; NaN where one is."""
    total: FloatArray = rows[0].copy()
    for row in rows[1:]:
        total += row
    mean: FloatArray = total / len(rows)
    return mean


def _largest_step(medians: FloatArray) -> FloatArray:
    """Return (series,) the largest change from one block to the next."""
    steps = np.abs(np.diff(medians, axis=0))
    largest: FloatArray = np.fmax.reduce(steps, axis=0)
    return largest


def _median(values: FloatArray) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None
