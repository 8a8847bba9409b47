"""Time is lost: one step takes very long, or each takes longer from a step on."""

from __future__ import annotations

from benchmarks.alerts.faults.fault import Fault, Site
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import STEP_S, Job


class Stall(Fault):
    """Nothing comes for a while, and then the run goes on as if nothing had been.

    Args:
        site: Where it is put.
        seconds: How long.
    """

    kind = "stall"
    rules: tuple[str, ...] = ("liveness",)
    length = 40
    shows_after = None
    is_in_numbers = False

    def __init__(self, site: Site, seconds: float = 2400.0) -> None:
        self.seconds = seconds
        super().__init__(site)
        self.last_step = self.step

    def before(self, job: Job, step: int) -> None:
        if step == self.step:
            job.pause_s = self.seconds

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert bad.seconds[0] - healthy.seconds[0] > 0.9 * self.seconds, "no gap"


class Slowed(Fault):
    """Each step takes longer: a throttled device, or data that come late.

    Args:
        site: Where it is put.
        factor: Factor on the usual time of a step.
    """

    kind = "slow"
    rules = ("slow",)
    shows_after = None
    is_in_numbers = False

    def __init__(self, site: Site, factor: float) -> None:
        self.factor: float = factor
        super().__init__(site)

    def before(self, job: Job, step: int) -> None:
        job.pause_s = STEP_S * (float(self.factor or 1) - 1.0)

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert bad.seconds[-1] - bad.seconds[0] > 2.0 * STEP_S * (len(bad) - 1), "no slower"
