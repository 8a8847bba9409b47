"""Gradient norms that jump past a limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from pydantic import Field, model_validator

from gradwatch_server.core.alerting.attribution import explosion_ranks
from gradwatch_server.core.alerting.baselines.judgement import FIRST_MODULE, Judgement
from gradwatch_server.core.alerting.baselines.reference import MAX_AWAY_FRAMES
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import (
    FOR_STEPS,
    HealthShare,
    Limit,
    Steps,
)
from gradwatch_server.core.alerting.rules.module import ranks_with
from gradwatch_server.core.alerting.rules.rising import RisingRule
from gradwatch_server.core.alerting.wording import comparison
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.packing import pack, unpack
from gradwatch_wire.health import EXPLODING_THRESHOLD, Severity

EARLY_FACTOR: Final = 10.0
"""Before there is a history, a layer has jumped if it is this many times its largest so far."""

LN_FACTOR: Final = 1.3862943611198906
"""ln 4: over the largest of the last 256 frames, as in the rule `spike`."""

LN_RATIO: Final = 1.0986122886681098
"""ln 3: over the usual."""

DEVIATIONS: Final = 4.0


class ExplodingMemory:
    """What each layer came to so far, and which ones have jumped past the limit.

    Attributes:
        largest: (layers,) largest norm where it belongs, NaN without any.
        before: (layers,) `largest` at the jump of a layer that has jumped and not come back, else
            NaN.
        frames: (layers,) since the jump.
        any_away: Whether any layer has jumped and not come back.
    """

    def __init__(self) -> None:
        self.largest: FloatArray = np.zeros(0)
        self.before: FloatArray = np.zeros(0)
        self.frames: IndexArray = np.zeros(0, dtype=np.int64)
        self.any_away = False

    def look_again(self) -> None:
        """Note whether any layer has jumped and not come back."""
        self.any_away = not np.isnan(self.before).all()

    def fit(self, number: int) -> None:
        """Make room for *number* layers."""
        more = number - len(self.largest)
        if more > 0:
            self.largest = np.append(self.largest, np.full(more, np.nan))
            self.before = np.append(self.before, np.full(more, np.nan))
            self.frames = np.append(self.frames, np.zeros(more, dtype=np.int64))

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {name: pack(getattr(self, name)) for name in ("largest", "before", "frames")}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self.largest = np.array(unpack(plain["largest"]), dtype=np.float64)
        self.before = np.array(unpack(plain["before"]), dtype=np.float64)
        self.frames = np.array(unpack(plain["frames"]), dtype=np.int64)
        self.look_again()


class ExplodingRule(RisingRule):
    """A layer's gradient L2 norm above `limit`, by a jump over its own past or without any past.

    A jump is a norm of the layer's module more than 4 times the largest of the last 256 frames, or
    more than 3 times the usual and 4 usual deviations above it. It is critical from the fourth
    frame on in which the norm is 10 times the layer's largest before.

    In the first 32 frames there is no history, and the limit alone counts: a norm above it that is
    10 times the layer's largest so far is a jump, all else is told as `info` until there is a
    history. A layer that was always above the limit has a scale (a summed loss makes one), and is
    not said to explode any more then.

    It is over when the norm is at or below `clear`, or when the layer was at the new level for 256
    frames.

    Its origin is found as that of `spike`: `layer` is null where several modules jump at once.
    `rank` is the one that made it rise, if one stands out ([how](#the-origin)); else `ranks` are
    those whose own gradient (`attach(local=True)`) breaks the limit, and without these numbers
    those that show it.
    """

    name = "exploding"
    recurs = True
    follows = ("nonfinite", "spike", "rank_divergence", "rank_outlier", "loss")
    health = HealthShare.EXPLODING
    formula = """
        a layer has `l2 > limit` on any rank, and it jumped: in logarithms, its module has
        `x - max256 > ln 4` or `x - mean > max(ln 3, 4 deviations)`; without a history
        `l2 > 10 * (its largest so far)`. It is held while `l2 > clear`.
    """
    tuning = """
        A loss that is summed over the batch needs no other `limit`: only a jump past it counts.
        Try one on a run that went well: `gradwatch rules check`. If one part of the model is louder
        than the rest, leave it out with `layers = ["!head.*"]`: `spike` still judges it.
    """
    source = """
        The limit of 100 is that of the documents that gradwatch was made from. That it takes a jump
        is because healthy trainings may be above it all the time, as with a summed loss.
    """

    limit: Limit = Field(EXPLODING_THRESHOLD, description="L2 norm above which a layer explodes.")
    clear: Limit = Field(
        EXPLODING_THRESHOLD / 2, description="L2 norm at or below which a layer is calm again."
    )
    for_steps: Steps = Field(1, description=FOR_STEPS)

    @model_validator(mode="after")
    def _hysteresis(self) -> ExplodingRule:
        if self.clear > self.limit:
            msg = f"clear ({self.clear:g}) must not be above limit ({self.limit:g})"
            raise ValueError(msg)
        return self

    def memory(self) -> ExplodingMemory:
        """Return a new memory."""
        return ExplodingMemory()

    def seen(self, frame: Frame) -> BoolArray:
        """Return the layers with a finite norm, (layers,): an Inf is no large one."""
        return frame.present & ~frame.nonfinite

    def threshold(self) -> float:
        """Return the limit."""
        return self.limit

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        """Return the layers above the limit that have jumped there, (layers,)."""
        memory, norms = self._memory(context), observation.l2_max
        memory.fit(len(norms))
        over: BoolArray = norms > self.limit
        is_over = bool(np.count_nonzero(over))
        if is_over:
            over &= self.seen(observation)
        jumped = over & self._jumped(observation, context) if is_over else over
        if memory.any_away or np.count_nonzero(jumped):
            self._follow(memory, norms, jumped)
        self._learn(memory, observation)
        if not is_over:  # nearly always
            return over
        jumped = ~np.isnan(memory.before)
        return over & (jumped | self._is_new(observation, context))

    def held_layers(self, frame: Frame, context: Context) -> BoolArray:
        """Return the layers that are not calm yet, (layers,)."""
        jumped = ~np.isnan(self._memory(context).before)
        away = jumped | self._is_new(frame, context)
        return away & (frame.l2_max > self.clear) & self.seen(frame)

    def raised_modules(self, frame: Frame, judgement: Judgement, context: Context) -> BoolArray:
        """Return the modules with a raised layer, (modules,)."""
        return judgement.modules.any_of(self.raised(frame, context))

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return critical where a layer stays far above its past, info where none has jumped."""
        memory = self._memory(context)
        if np.isnan(memory.before[raised]).all():
            return Severity.INFO
        with np.errstate(invalid="ignore"):
            far = raised & (frame.l2_max / EARLY_FACTOR > memory.before)
        return Severity.CRITICAL if far.any() and in_a_row >= 4 else self.severity

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        """Return the ranks whose own gradient is above the limit, else those that show it."""
        return explosion_ranks(frame, index, self.limit) or ranks_with(
            frame, index, lambda part: part.peak > self.limit
        )

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        usual = f", usually {origin.usual:.3g}" if origin.usual else ""
        what = f"gradient of {self.subject(origin)} has L2 norm {comparison(origin)}{usual}"
        return what + self.since(origin)

    def _is_new(self, frame: Frame, context: Context) -> BoolArray:
        """Return the layers of modules without a history, (layers,)."""
        judgement = context.judge(frame)
        is_known = judgement.is_known[FIRST_MODULE:]
        return judgement.modules.spread(~is_known, len(frame.present))

    def _jumped(self, frame: Frame, context: Context) -> BoolArray:
        judgement, memory = context.judge(frame), self._memory(context)
        rise = judgement.rise
        with np.errstate(invalid="ignore", over="ignore"):
            series = judgement.is_known & (
                (judgement.over_peak > LN_FACTOR)
                | (rise > np.maximum(LN_RATIO, DEVIATIONS * judgement.deviation))
            )
            early = frame.l2_max / EARLY_FACTOR > memory.largest
        modules = judgement.modules.spread(series[FIRST_MODULE:], len(early))
        return modules | (early & self._is_new(frame, context))

    def _follow(self, memory: ExplodingMemory, norms: FloatArray, jumped: BoolArray) -> None:
        memory.before = np.where(np.isnan(memory.before) & jumped, memory.largest, memory.before)
        away = ~np.isnan(memory.before)
        memory.frames = np.where(away, memory.frames + 1, 0)
        calm = (norms <= self.clear) | (memory.frames > MAX_AWAY_FRAMES)
        memory.before[away & calm & ~jumped] = np.nan
        memory.look_again()

    def _learn(self, memory: ExplodingMemory, frame: Frame) -> None:
        """Note the largest norms so far of layers that are where they belong."""
        norms = frame.l2_max  # NaN where absent
        if memory.any_away or np.count_nonzero(frame.nonfinite):
            norms = np.where(self.seen(frame) & np.isnan(memory.before), norms, np.nan)
        np.fmax(memory.largest, norms, out=memory.largest)

    def _memory(self, context: Context) -> ExplodingMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, ExplodingMemory)  # noqa: S101 - for the type checker
        return memory
