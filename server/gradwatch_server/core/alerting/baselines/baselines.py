"""Baselines: what was usual in an attempt, of each module, of the total norm and of the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np

from gradwatch_server.core.alerting.baselines.judgement import (
    FIRST_MODULE,
    LOSS,
    TOTAL,
    Judgement,
)
from gradwatch_server.core.alerting.baselines.levels import ModuleLevels
from gradwatch_server.core.alerting.baselines.logarithm import natural_log
from gradwatch_server.core.alerting.baselines.loss_level import NO_RISE, LossLevel, LossRise
from gradwatch_server.core.alerting.baselines.modules import Modules
from gradwatch_server.core.alerting.baselines.running import RunningStatistics
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.frames.frame import Frame

MIN_DEVIATION: Final = 0.1
"""Of a logarithm: norms that hardly move are not called unusual for a tenth."""

MIN_LOSS_DEVIATION: Final = 0.1
"""Of a loss that is no logarithm, as a share of its usual magnitude."""

MAX_LOSS: Final = 1e38
"""Beyond this a loss that is no logarithm counts as this: a float32 can keep it, and its square is
a float64."""

RESUMED_FRAMES: Final = 32
RESUMED_WEIGHT: Final = 0.1
"""After a resumption what is usual is learned again with this weight, for so many frames."""


class Baselines:
    """The running statistics of one attempt, and where its latest frame stands beside them."""

    def __init__(self) -> None:
        self.modules = Modules()
        self._running = RunningStatistics()
        self._loss_level = LossLevel()
        self._is_log_loss = True
        self._resumed = 0  # frames for which it learns quickly
        self._judged: tuple[Frame, Judgement] | None = None

    def judge(self, frame: Frame, names: Sequence[str]) -> Judgement:
        """Return where a frame stands; asked again for the same one, the same.

        Args:
            frame: A closed step that is not yet added.
            names: (layers,) names of the attempt's layers.
        """
        if self._judged is not None and self._judged[0] is frame:
            return self._judged[1]
        self.modules.extend(names)
        self._running.fit(FIRST_MODULE + len(self.modules.names))
        self._judged = frame, self._judge(frame)
        return self._judged[1]

    def add(self, frame: Frame, names: Sequence[str]) -> None:
        """Learn from a frame, once all rules have looked at it.

        A frame with anything non-finite teaches nothing: a GradScaler skips it, or the training is
        broken.
        """
        judgement = self.judge(frame, names)
        samples = judgement.samples
        if np.count_nonzero(frame.nonfinite):
            samples = np.full_like(samples, np.nan)
        usual = float(judgement.mean[LOSS]), float(judgement.deviation[LOSS])
        known = usual if judgement.is_known[LOSS] else None
        self._loss_level.add(frame.step, float(samples[LOSS]), known, frame.lr)
        weight = RESUMED_WEIGHT if self._resumed else 0.0
        self._running.add(samples, judgement.deviation, weight)
        self._resumed = max(0, self._resumed - 1)

    def levels(self) -> ModuleLevels:
        """Return what is usual of each module by now."""
        modules = slice(FIRST_MODULE, FIRST_MODULE + len(self.modules.names))
        running = self._running
        return ModuleLevels(
            self.modules.of_layer, running.mean[modules], running.is_known()[modules]
        )

    def resume(self) -> None:
        """Note that the training was interrupted: what is usual may have moved a little."""
        self._running.learn_again()
        self._loss_level.clear()
        self._resumed = RESUMED_FRAMES

    def rearranged(self, names: Sequence[str], others: Sequence[str]) -> Self:
        """Return a copy for an attempt that has the same layers in another order.

        Args:
            names: (layers,) names of the layers that this one is of.
            others: (layers,) the same names in the other order.
        """
        made, own = type(self)(), Modules()
        own.extend(names)
        made.modules.extend(others)
        self._running.fit(FIRST_MODULE + len(own.names))
        place = {name: FIRST_MODULE + number for number, name in enumerate(own.names)}
        order = [TOTAL, LOSS, *(place[name] for name in made.modules.names)]
        made._running = self._running.rearranged(order)
        made._is_log_loss, made._resumed = self._is_log_loss, self._resumed
        return made

    def _judge(self, frame: Frame) -> Judgement:
        running = self._running
        norms = self._norms(frame)
        samples = self._samples(frame, norms)
        deviation, is_known = running.deviation(self._floor()), running.is_known()
        return Judgement(
            modules=self.modules,
            norms=norms,
            samples=samples,
            mean=running.mean,
            deviation=deviation,
            peak=running.peak,
            count=running.count,
            is_known=is_known,
            is_log_loss=self._is_log_loss,
            loss_rise=self._loss_rise(frame, samples, deviation, is_known),
        )

    def _loss_rise(
        self, frame: Frame, samples: FloatArray, deviation: FloatArray, is_known: BoolArray
    ) -> LossRise:
        if not self._is_log_loss:  # no likelihood: its level is no measure of harm
            return NO_RISE
        usual = float(self._running.mean[LOSS]), float(deviation[LOSS])
        known = usual if is_known[LOSS] else None
        return self._loss_level.rise(frame.step, float(samples[LOSS]), known, frame.lr)

    def _norms(self, frame: Frame) -> FloatArray:
        if not np.count_nonzero(frame.nonfinite):
            return self.modules.norms(frame.l2_max)
        norms = self.modules.norms(np.where(frame.nonfinite, np.nan, frame.l2_max))
        norms[self.modules.any_of(frame.nonfinite)] = np.nan
        return norms

    def _samples(self, frame: Frame, norms: FloatArray) -> FloatArray:
        samples = np.empty(len(self._running))
        samples[FIRST_MODULE : FIRST_MODULE + len(norms)] = norms
        samples[FIRST_MODULE + len(norms) :] = np.nan
        samples[TOTAL] = math.nan if frame.total_norm is None else frame.total_norm
        loss = math.nan if frame.loss is None else frame.loss
        if self._is_log_loss and -math.inf < loss <= 0.0:
            self._forget_logs()
        samples[LOSS] = loss
        logarithms = natural_log(samples)
        if not self._is_log_loss and math.isfinite(loss):
            logarithms[LOSS] = min(max(loss, -MAX_LOSS), MAX_LOSS)
        return logarithms

    def _forget_logs(self) -> None:
        """From here on look at the loss itself: what its logarithms were says nothing of it."""
        self._is_log_loss = False
        self._running.restart(LOSS)
        self._loss_level.clear()

    def _floor(self) -> FloatArray | float:
        if self._is_log_loss:
            return MIN_DEVIATION
        floor = np.full(len(self._running), MIN_DEVIATION)
        share = MIN_LOSS_DEVIATION * abs(float(self._running.mean[LOSS]))
        # Of a loss around 0 there is no magnitude to take a share of.
        floor[LOSS] = share if share > 1.0 / MAX_LOSS else MIN_LOSS_DEVIATION
        return floor

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `from_state_dict`; modules follow from the names of layers."""
        return {
            "running": self._running.state_dict(),
            "loss_level": self._loss_level.state_dict(),
            "is_log_loss": self._is_log_loss,
            "resumed": self._resumed,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Return what `state_dict` described."""
        made = cls()
        made._running = RunningStatistics.from_state_dict(state["running"])
        made._loss_level.load_state_dict(state["loss_level"])
        made._is_log_loss = state["is_log_loss"]
        made._resumed = state["resumed"]
        return made
