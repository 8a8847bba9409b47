"""Steps that a GradScaler skips, more of them than finding its scale explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.evaluation import NOT_WORSE, Context, Evaluation, Verdict
from gradwatch_server.core.alerting.origin import Origin, find_nonfinite, one_rank
from gradwatch_server.core.alerting.rules.base import CLEAR_STEPS, Limit, Rule, Steps
from gradwatch_server.core.alerting.skips import Calibration, scale_of, was_skipped
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity

GROUP: Final = "skips"
"""The group of its alerts."""

FRAMES: Final = 100
"""Frames over which skips are counted."""


class SkipsMemory:
    """The skips among the last frames, and those in a row at their end.

    Attributes:
        run: Skips in a row up to the latest frame.
        steps: Frame to step of each skip in the last 100 frames after the calibration.
    """

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.run = 0
        self.run_step = 0
        self.steps: dict[int, int] = {}
        self._num_frames = 0

    def follow(self, frame: Frame, scale: float, *, skipped: bool) -> None:
        """Take in a frame."""
        if self.calibration.follow(scale, skipped=skipped):
            self.run, self.steps = 0, {}
        self._num_frames += 1
        if not skipped:
            self.run = 0
        else:
            self.run_step = self.run_step if self.run else frame.step
            self.run += 1
            if self.calibration.is_over:
                self.steps[self._num_frames] = frame.step
        first = self._num_frames - FRAMES
        while self.steps and next(iter(self.steps)) <= first:
            del self.steps[next(iter(self.steps))]

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "calibration": self.calibration.state_dict(),
            "run": self.run,
            "run_step": self.run_step,
            "steps": list(self.steps.items()),
            "num_frames": self._num_frames,
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self.calibration.load_state_dict(plain["calibration"])
        self.run, self.run_step = plain["run"], plain["run_step"]
        self.steps = dict(plain["steps"])
        self._num_frames = plain["num_frames"]


class SkippedStepsRule(Rule):
    """A GradScaler skips many steps in a row, or too many altogether.

    It is about the run: its alert has the group `skips` and no layers. A skip is a frame with a
    non-finite gradient under a GradScaler (records carry `loss_scale`) whose loss was finite, as
    far as it is known. One whose loss was not is told of by `nonfinite`, as critical, and does not
    count here. Each single skip is told of there as well, as info, with layer and rank.

    Until 32 steps were taken, since the beginning or since the scale was set anew, the scaler looks
    for its scale, and up to `calibration_skips` in a row are nothing, unless it is below
    `min_loss_scale`. After that `skips` in a row are a warning, as are more than `max_skips` among
    the last 100 frames; `critical_skips` in a row, or a scale below `min_loss_scale`, are critical.

    `origin.step` is the first of the skips, `origin.value` how many there are so far. With
    `every=` or `report_every=` above 1, frames are counted, not steps.
    """

    name = "skipped_steps"
    follows = ("nonfinite", "loss")
    takes = (Frame,)
    formula = """
        after 32 steps that were taken, or where `scale < min_loss_scale`: `skips` frames in a row
        are skipped; before that, more than `calibration_skips` in a row; or more than `max_skips`
        of the last 100. It is critical from `critical_skips` in a row on, or where
        `scale < min_loss_scale`.
    """
    tuning = """
        Choose an `init_scale` that fits, rather than a higher `calibration_skips`: each skip halves
        it. Raise `max_skips` where the scaler has a short `growth_interval`, for each growth may
        cost a skip.
    """
    source = """
        Measured with PyTorch's GradScaler and a scale of 65,536: a mean loss skips no step at the
        start, a summed one 2, one that is 100 times that 9 in a row; then one for each growth
        interval. A loss that had become NaN was skipped every time, and the scale was below 1 after
        17 steps.
    """

    clear_steps: Steps = Field(16, description=CLEAR_STEPS)
    skips: Steps = Field(3, description="Skipped frames in a row that are too many.")
    critical_skips: Steps = Field(8, description="Skipped frames in a row that are critical.")
    max_skips: Steps = Field(5, description="Skipped frames among the last 100 that are normal.")
    calibration_skips: Steps = Field(
        16, description="Skipped frames in a row that are normal while the scale is looked for."
    )
    min_loss_scale: Limit = Field(
        1.0, description="Loss scale below which skips that are too many are critical."
    )

    def memory(self) -> SkipsMemory:
        """Return a new memory."""
        return SkipsMemory()

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return whether there are too many skips by now, (1,)."""
        memory, scale = self._memory(context), scale_of(observation)
        skipped = was_skipped(observation)
        if scale is not None and (skipped or not observation.nonfinite.any()):
            memory.follow(observation, scale, skipped=skipped)
        if not memory.run and not memory.steps:  # nearly always
            return None
        return np.array([self._in_a_row(memory) or len(memory.steps) > self.max_skips])

    def _in_a_row(self, memory: SkipsMemory) -> bool:
        calibration = memory.calibration
        is_low = calibration.scale is not None and calibration.scale < self.min_loss_scale
        if calibration.is_over or is_low:
            return memory.run >= self.skips
        return memory.run > self.calibration_skips

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield the one evaluation of a step."""
        memory, scale = self._memory(context), scale_of(observation)
        is_raised = bool(raised.any())
        severe = self._in_a_row(memory) and memory.run >= self.critical_skips
        severe = severe or (scale is not None and scale < self.min_loss_scale)
        yield Evaluation(
            group=GROUP,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=Verdict.of_run(
                raised=is_raised,
                held=is_raised or memory.run > 0,
                seen=scale is not None,
            ),
            names=(),
            origin=lambda _: self._origin(observation, context),
            severity=lambda _: Severity.CRITICAL if severe else self.severity,
            extend=lambda origin: self._extended(origin, observation, context),
            excess=NOT_WORSE,
        )

    def _origin(self, frame: Frame, context: Context) -> Origin:
        memory = self._memory(context)
        found = find_nonfinite(frame, frame.nonfinite) if frame.nonfinite.any() else None
        layer = None if found is None else found.layer
        ranks = () if found is None else found.ranks
        step = memory.run_step if self._in_a_row(memory) else next(iter(memory.steps.values()))
        origin = Origin(
            step=step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=None if layer is None else context.names[layer],
            kind=None,
            value=0.0,
            threshold=None,
            bad_loss=None if found is None else found.bad_loss,
        )
        return self._extended(origin, frame, context)

    def _extended(self, origin: Origin, frame: Frame, context: Context) -> Origin:
        """Return *origin* with how many there are by now, if they are more."""
        memory = self._memory(context)
        in_a_row = self._in_a_row(memory)
        count = memory.run if in_a_row else len(memory.steps)
        if count <= origin.value:
            return origin
        which = "in a row" if in_a_row else f"of the last {FRAMES}"
        notes = [which, f"loss scale {frame.loss_scale:g}"]
        if frame.loss is not None:
            notes.append("the loss is finite")
        return replace(origin, value=float(count), notes=tuple(notes))

    def _memory(self, context: Context) -> SkipsMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, SkipsMemory)  # noqa: S101 - for the type checker
        return memory
