"""Gradients overflow under a GradScaler, again and again."""

from __future__ import annotations

from benchmarks.alerts.faults.fault import Fault, Site, UnfitError
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Gradients, Job


class Overflow(Fault):
    """One module's gradient is Inf in some steps in a row, each of which is skipped.

    Args:
        site: Where it is put.
        factor: How many.
    """

    kind = "skipped_steps"
    rules = ("loss_scaler", "nonfinite")
    needs = "scaler"

    def __init__(self, site: Site, factor: float) -> None:
        self._steps = steps = round(factor)
        super().__init__(site)
        self.last_step = self.step + steps - 1

    def choose(self, site: Site) -> None:
        if site.job.training.scaler is None:
            raise UnfitError
        self.module = self.choose_module(site)

    def local(self, job: Job, step: int, rank: int, gradients: Gradients) -> None:
        if self.is_on(step):
            for name in self.layers:
                gradients[name].fill_(float("inf"))

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert not bad.taken[: self._steps].any(), "steps were taken"
        expected = bad.loss_scale[0] * 0.5 ** (self._steps - 1)
        assert bad.loss_scale[self._steps - 1] == expected, "the scale was not halved each time"


class ScaleCollapse(Overflow):
    """An overflow that never ends: the scale goes to nothing."""

    kind = "loss_scale"

    def __init__(self, site: Site) -> None:
        super().__init__(site, self.length)

    def check(self, healthy: Rows, bad: Rows) -> None:
        super().check(healthy, bad)
        assert bad.loss_scale[-1] < 1, "the scale is not below 1"
