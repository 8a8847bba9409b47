"""Nothing comes for a while, and then the run goes on as if nothing had been."""

from __future__ import annotations

from benchmarks.alerts.faults.fault import Fault, Site
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Job


class Stall(Fault):
    """One step takes longer by some time.

    Args:
        site: Where it is put.
        seconds: How long.
    """

    kind = "stall"
    rules = ("run_stalled",)
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
