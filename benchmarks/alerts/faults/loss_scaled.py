"""The loss is multiplied: a mean became a sum, say. All gradients grow with it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from benchmarks.alerts.faults.fault import LOUD, Fault, Site, UnfitError, expect
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Job


class LossScaled(Fault):
    """From a step on."""

    kind = "exploding"
    rules = LOUD

    def __init__(self, site: Site, factor: float) -> None:
        self.factor: float = factor
        super().__init__(site)

    def choose(self, site: Site) -> None:
        if site.job.training.scaler is not None:
            raise UnfitError  # the scale is found anew, and then nothing is large

    def loss(self, job: Job, step: int, rank: int, loss: Tensor) -> Tensor:
        return loss * float(self.factor or 1)

    def check(self, healthy: Rows, bad: Rows) -> None:
        totals = [np.sqrt(np.nansum(rows.column("l2")[0] ** 2)) for rows in (healthy, bad)]
        expect(totals[1] / totals[0], float(self.factor or 1), "ratio of the total norms")
