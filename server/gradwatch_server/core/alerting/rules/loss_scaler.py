"""A GradScaler that skips too many steps, or whose scale falls and falls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import ranks_of, was_skipped
from gradwatch_server.core.alerting.evaluation import NOT_WORSE, Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin, find_nonfinite, one_rank
from gradwatch_server.core.alerting.rules.base import Limit, Rule, Sign, Steps
from gradwatch_server.core.alerting.sentences import SKIPS
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity

SCALE: Final = "loss scale"
"""Group of its alerts about the scale."""

CALIBRATION_FRAMES: Final = 32
"""Frames with a step that was taken, after which a scaler has found its scale."""

RESET: Final = 4.0
"""A scale that grows by more than so many times at once was set anew: scalers double it."""

WINDOW_FRAMES: Final = 100
"""Frames over which skips are counted."""

APART_FRAMES: Final = 20
"""Frames between two falls that count as two: closer ones are a run of skips."""

FORGOTTEN_FRAMES: Final = 1024
"""Frames without a fall after which those before are forgotten."""

CLEAR_FRAMES: Final = 16
"""Frames without a skip after which an alert of skips is over."""


@dataclass(slots=True)
class ScalerMemory:
    """Skips, and falls of the scale, of one attempt.

    Attributes:
        scale: The latest, None before the first.
        num_taken: Frames whose step was taken, since the scale was set.
        num_frames: Frames that were a skip, or finite.
        in_a_row: Skips up to the latest frame.
        first_step: Step of the first of them.
        skips: `(frame, step)` of each skip in the last 100 frames after the calibration.
        falls: Falls of the scale since it last grew, those of one run of skips once.
        fall_step: Step of the first fall.
        before: The scale before it.
        has_run: Whether two falls were close together since the scale was last high enough.
        since_fall: Frames since the latest fall.
    """

    scale: float | None = None
    num_taken: int = 0
    num_frames: int = 0
    in_a_row: int = 0
    first_step: int = 0
    skips: list[tuple[int, int]] = field(default_factory=list)
    falls: int = 0
    fall_step: int = 0
    before: float = 0.0
    has_run: bool = False
    since_fall: int = FORGOTTEN_FRAMES

    @property
    def is_calibrated(self) -> bool:
        return self.num_taken >= CALIBRATION_FRAMES

    def update(self, frame: Frame, scale: float, *, enough: float) -> None:
        last, self.scale = self.scale, scale
        is_bad = bool(np.count_nonzero(frame.nonfinite))
        is_reset = last is not None and scale > RESET * last
        self.num_taken = (0 if is_reset else self.num_taken) + (not is_bad)
        if is_reset:
            self.in_a_row, self.skips = 0, []
        skipped = is_bad and was_skipped(frame)
        if skipped or not is_bad:  # where the loss was bad, the scale is not to blame
            self._count(frame.step, skipped=skipped)
        self._update_scale(frame.step, scale, last, is_reset=is_reset, enough=enough)

    def _count(self, step: int, *, skipped: bool) -> None:
        self.num_frames += 1
        if skipped:
            self.first_step = self.first_step if self.in_a_row else step
            if self.is_calibrated:
                self.skips.append((self.num_frames, step))
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        while self.skips and self.skips[0][0] <= self.num_frames - WINDOW_FRAMES:
            del self.skips[0]

    def _update_scale(
        self, step: int, scale: float, last: float | None, *, is_reset: bool, enough: float
    ) -> None:
        self.since_fall += 1
        self.has_run &= scale < enough
        if is_reset or not self.is_calibrated:
            self.falls = 0
        elif last is not None and scale < last:
            if self.since_fall < APART_FRAMES:
                self.has_run = True
            else:
                if not self.falls:
                    self.fall_step, self.before = step, last
                self.falls += 1
            self.since_fall = 0
        elif self.since_fall > FORGOTTEN_FRAMES or (last is not None and scale > last):
            self.falls = 0


class LossScalerRule(Rule):
    """A GradScaler that skips many steps, or whose scale falls again and again without growing.

    Its alerts have the group `skips` or `loss scale` and no layers. A skip is a frame with a
    non-finite gradient under a GradScaler (records carry `loss_scale`) and a loss that was finite,
    as far as it is known. `nonfinite` tells of each single skip as info, and of a non-finite loss
    as critical.

    Until 32 steps were taken, since the beginning or since the scale was set anew, the scaler looks
    for its scale: up to `calibration_skips` in a row are normal, unless the scale is below
    `min_loss_scale`. Then `skips` in a row, or more than `max_skips` of the last 100 frames, are a
    warning; `critical_skips` in a row, or a scale below `min_loss_scale`, are critical.

    A healthy scaler falls by one half now and then, and grows back after its growth interval (2000
    steps). Falls 20 frames apart or more count as several; `falls` of them without growth between
    are a warning. A scale below `min_loss_scale` makes gradients smaller and is critical, unless a
    run of skips has brought it there. It is over when the scale grows, or has not fallen for 1024
    frames.

    `origin.step` is the first of the skips or falls, `origin.value` the number of skips or the
    scale, `origin.usual` the scale before the first fall.
    """

    name = "loss_scaler"
    follows = ("nonfinite", "loss", "loss_scaler")
    takes = (Frame,)
    spoils_steps = False
    signs = Sign.LOSS_SCALE
    memory: ClassVar[type | None] = ScalerMemory
    formula = """
        after 32 steps that were taken, or where `scale < min_loss_scale`: `skips` frames in a row
        are skipped; before that, more than `calibration_skips` in a row; or more than `max_skips`
        of the last 100. Or, after 32 steps that were taken: the scale has fallen `falls` times, 20
        frames apart or more, and has not grown in between; or `scale < min_loss_scale`, unless two
        falls were closer together.
    """
    tuning = """
        Choose an `init_scale` that fits, rather than a higher `calibration_skips`: each skip halves
        it. Raise `max_skips` where the scaler has a short `growth_interval`, for each growth may
        cost a skip, and `falls` where it has a long one. A scaler that falls and falls asks for
        bfloat16, or for a look at what grows: activations or gradients.
    """
    source = """
        Measured with PyTorch's GradScaler and a scale of 65,536: a mean loss skips no step at the
        start, a summed one 2, one that is 100 times that 9 in a row; then one for each growth
        interval. A loss that had become NaN was skipped every time, and the scale was below 1 after
        17 steps. That a scale collapses where a run diverges is reported of OPT-175B. The limits
        are heuristics.
    """

    clear_steps: Steps = Field(
        1, description="Consecutive good frames after which an alert of the scale is resolved."
    )
    skips: Steps = Field(3, description="Skipped frames in a row that are too many.")
    critical_skips: Steps = Field(8, description="Skipped frames in a row that are critical.")
    max_skips: Steps = Field(5, description="Skipped frames among the last 100 that are normal.")
    calibration_skips: Steps = Field(
        16, description="Skipped frames in a row that are normal while the scale is looked for."
    )
    falls: Steps = Field(4, description="Falls without growth between that are too many.")
    min_loss_scale: Limit = Field(1.0, description="Loss scale below which it is critical.")

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return whether there are too many skips or falls by now, (1,)."""
        scale = observation.loss_scale
        if scale is None or not math.isfinite(scale):
            return None
        memory = context.memory(self.name, ScalerMemory)
        memory.update(observation, scale, enough=self.min_loss_scale)
        return np.array([self._skips_much(memory) or self._falls_much(memory)])

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        memory, scale = context.memory(self.name, ScalerMemory), observation.loss_scale
        seen = scale is not None and math.isfinite(scale)
        skips_much, falls_much = self._skips_much(memory), self._falls_much(memory)
        is_low = self._is_low(memory)
        severe = self._in_a_row(memory) and memory.in_a_row >= self.critical_skips
        severe = severe or (seen and self._is_small(memory))
        yield Evaluation(
            group=SKIPS,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=RuleVerdict.of_run(
                raised=seen and skips_much, held=skips_much or memory.in_a_row > 0, seen=seen
            ),
            names=(),
            origin=lambda _: self._origin_of_skips(observation, context, memory),
            severity=lambda _: Severity.CRITICAL if severe else self.severity,
            extend=lambda origin: self._extended(origin, observation, memory),
            excess=NOT_WORSE,
            clear_steps=CLEAR_FRAMES,
        )
        yield Evaluation(
            group=SCALE,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=RuleVerdict.of_run(
                raised=seen and falls_much and not skips_much, held=falls_much, seen=seen
            ),
            names=(),
            origin=lambda _: self._origin_of_scale(observation, memory),
            severity=lambda _: Severity.CRITICAL if is_low else self.severity,
        )

    def _in_a_row(self, memory: ScalerMemory) -> bool:
        if memory.is_calibrated or self._is_small(memory):
            return memory.in_a_row >= self.skips
        return memory.in_a_row > self.calibration_skips

    def _skips_much(self, memory: ScalerMemory) -> bool:
        return self._in_a_row(memory) or len(memory.skips) > self.max_skips

    def _is_small(self, memory: ScalerMemory) -> bool:
        return memory.scale is not None and memory.scale < self.min_loss_scale

    def _is_low(self, memory: ScalerMemory) -> bool:
        return memory.is_calibrated and not memory.has_run and self._is_small(memory)

    def _falls_much(self, memory: ScalerMemory) -> bool:
        return self._is_low(memory) or memory.falls >= self.falls

    def _origin_of_skips(self, frame: Frame, context: Context, memory: ScalerMemory) -> Origin:
        nonfinite = find_nonfinite(frame, frame.nonfinite) if frame.nonfinite.any() else None
        layer = None if nonfinite is None else nonfinite.layer
        ranks = () if nonfinite is None else nonfinite.ranks
        origin = Origin(
            step=memory.first_step if self._in_a_row(memory) else memory.skips[0][1],
            rank=one_rank(ranks),
            ranks=ranks,
            layer=None if layer is None else context.names[layer],
            kind=None,
            value=0.0,
            threshold=None,
            bad_loss=None if nonfinite is None else nonfinite.bad_loss,
        )
        return self._extended(origin, frame, memory)

    def _extended(self, origin: Origin, frame: Frame, memory: ScalerMemory) -> Origin:
        """Return *origin* with how many there are by now, if they are more."""
        in_a_row = self._in_a_row(memory)
        count = memory.in_a_row if in_a_row else len(memory.skips)
        if count <= origin.value:
            return origin
        notes = ["in a row" if in_a_row else f"of the last {WINDOW_FRAMES}"]
        notes.append(f"loss scale {frame.loss_scale:g}")
        if frame.loss is not None:
            notes.append("the loss is finite")
        return replace(origin, value=float(count), notes=tuple(notes))

    def _origin_of_scale(self, frame: Frame, memory: ScalerMemory) -> Origin:
        ranks = ranks_of(frame.parts)
        return Origin(
            step=memory.fall_step if memory.falls else frame.step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=None,
            kind=None,
            value=memory.scale or 0.0,
            threshold=self.min_loss_scale if self._is_low(memory) else None,
            usual=memory.before if memory.falls else None,
        )
