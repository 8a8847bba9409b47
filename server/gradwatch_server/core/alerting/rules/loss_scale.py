"""The loss scale of a GradScaler: so low that it does nothing, or falling again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.evaluation import Context, Evaluation, Verdict
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import CLEAR_STEPS, Limit, Rule, Steps
from gradwatch_server.core.alerting.skips import Calibration, scale_of
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity

GROUP: Final = "loss scale"
"""The group of its alerts."""

APART: Final = 20
"""Frames between two falls that count as two: closer ones are a run of skips."""

FORGOTTEN: Final = 1024
"""Frames without a fall after which those before are forgotten."""


class ScaleMemory:
    """How often the scale has fallen since it last grew.

    Attributes:
        falls: Falls since then, those of one run of skips once.
        first_step: Step of the first of them.
        before: The scale before it.
        in_a_run: Whether two falls were close together since the scale was last high enough.
    """

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.falls = 0
        self.first_step = 0
        self.before = 0.0
        self.in_a_run = False
        self._since_fall = FORGOTTEN

    def follow(self, step: int, scale: float, *, skipped: bool, enough: float) -> None:
        """Take in a frame; *enough* is the scale that is high enough."""
        last = self.calibration.scale
        is_reset = self.calibration.follow(scale, skipped=skipped)
        self._since_fall += 1
        if scale >= enough:
            self.in_a_run = False
        if is_reset or not self.calibration.is_over:
            self.falls = 0
        elif last is not None and scale < last:
            self._fall(step, last)
        elif self._since_fall > FORGOTTEN or (last is not None and scale > last):
            self.falls = 0

    def _fall(self, step: int, last: float) -> None:
        if self._since_fall < APART:
            self.in_a_run = True
        else:
            if not self.falls:
                self.first_step, self.before = step, last
            self.falls += 1
        self._since_fall = 0

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "calibration": self.calibration.state_dict(),
            "falls": self.falls,
            "first_step": self.first_step,
            "before": self.before,
            "in_a_run": self.in_a_run,
            "since_fall": self._since_fall,
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self.calibration.load_state_dict(plain["calibration"])
        self.falls, self.first_step = plain["falls"], plain["first_step"]
        self.before, self.in_a_run = plain["before"], plain["in_a_run"]
        self._since_fall = plain["since_fall"]


class LossScaleRule(Rule):
    """The loss scale of a GradScaler is below 1, or falls again and again without ever growing.

    It is about the run: its alert has the group `loss scale` and no layers. A healthy scaler falls
    by one half now and then, and grows back after its growth interval (2000 steps). Falls that are
    20 frames apart or more count as several, closer ones as one: runs of skips are what the rule
    `skipped_steps` tells of. `falls` of them without growth between are a warning.

    A scale below `min_loss_scale` makes gradients smaller, not larger, and is critical, unless a
    run of skips has brought it there, which `skipped_steps` told. Nothing is judged until 32 steps
    were taken, since the beginning or since the scale was set anew: until then the scaler looks for
    its scale.

    `origin.step` is that of the first fall, `origin.usual` the scale before it, `origin.value` the
    scale when it was raised. It is over when the scale grows, or has not fallen for 1024 frames.
    """

    name = "loss_scale"
    follows = ("skipped_steps", "nonfinite")
    takes = (Frame,)
    yields_to = ("skipped_steps",)
    formula = """
        after 32 steps that were taken: the scale has fallen `falls` times, 20 frames apart or more,
        and has not grown in between; or `scale < min_loss_scale`, unless two falls were closer
        together.
    """
    tuning = """
        Raise `falls` where the scaler has a long `growth_interval`, in which several falls are
        normal. A scaler that falls and falls asks for bfloat16, or for a look at what grows:
        activations or gradients.
    """
    source = """
        PyTorch's GradScaler halves its scale at a skip and doubles it after 2,000 steps without
        one. That a scale collapses where a run diverges is reported of OPT-175B. The limits are
        heuristics.
    """

    clear_steps: Steps = Field(1, description=CLEAR_STEPS)
    falls: Steps = Field(4, description="Falls without growth between that are too many.")
    min_loss_scale: Limit = Field(1.0, description="Loss scale below which it is critical.")

    def memory(self) -> ScaleMemory:
        """Return a new memory."""
        return ScaleMemory()

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return whether the scale is too low, or has fallen too often, (1,)."""
        memory, scale = self._memory(context), scale_of(observation)
        if scale is None:
            return None
        skipped = bool(observation.nonfinite.any())
        memory.follow(observation.step, scale, skipped=skipped, enough=self.min_loss_scale)
        return np.array([self._is_low(memory) or memory.falls >= self.falls])

    def _is_low(self, memory: ScaleMemory) -> bool:
        scale = memory.calibration.scale
        is_judged = memory.calibration.is_over and not memory.in_a_run
        return scale is not None and scale < self.min_loss_scale and is_judged

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield the one evaluation of a step."""
        memory = self._memory(context)
        is_low = self._is_low(memory)
        held = is_low or memory.falls >= self.falls
        yield Evaluation(
            group=GROUP,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=Verdict.of_run(
                raised=bool(raised.any()), held=held, seen=scale_of(observation) is not None
            ),
            names=(),
            origin=lambda _: self._origin(observation, context),
            severity=lambda _: Severity.CRITICAL if is_low else self.severity,
        )

    def _origin(self, frame: Frame, context: Context) -> Origin:
        memory = self._memory(context)
        ranks = ranks_of(frame.parts)
        has_fallen = memory.falls > 0
        scale = 0.0 if frame.loss_scale is None else frame.loss_scale
        return Origin(
            step=memory.first_step if has_fallen else frame.step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=None,
            kind=None,
            value=scale,
            threshold=self.min_loss_scale if self._is_low(memory) else None,
            usual=memory.before if has_fallen else None,
        )

    def _memory(self, context: Context) -> ScaleMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, ScaleMemory)  # noqa: S101 - for the type checker
        return memory
