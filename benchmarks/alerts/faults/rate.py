"""The learning rate is set wrongly from a step on."""

from __future__ import annotations

from benchmarks.alerts.faults.fault import LOUD, Fault, Site, expect
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Job


class Rate(Fault):
    """A learning rate that is multiplied.

    Args:
        site: Where it is put.
        factor: What it is multiplied by.
    """

    kind = "learning_rate"
    rules: tuple[str, ...] = LOUD
    shows_after = 1

    def __init__(self, site: Site, factor: float) -> None:
        self.factor: float = factor
        super().__init__(site)

    def before(self, job: Job, step: int) -> None:
        for each in job.distinct:
            each.rate_factor = self.factor

    def check(self, healthy: Rows, bad: Rows) -> None:
        expect(bad.lr[0] / healthy.lr[0], self.factor, "ratio of the rates")


class NoRate(Rate):
    """A learning rate of zero: nothing is learnt any more."""

    kind = "learning_rate_zero"
    rules = ("not_learning",)
    length = 250

    def __init__(self, site: Site) -> None:
        super().__init__(site, 0.0)


class RateRamp(Rate):
    """A learning rate that grows by some per cent per step."""

    kind = "learning_rate_ramp"
    rules = LOUD
    is_gradual = True
    length = 200

    def before(self, job: Job, step: int) -> None:
        for each in job.distinct:
            each.rate_factor = float(self.factor or 1) ** (step - self.step + 1)
