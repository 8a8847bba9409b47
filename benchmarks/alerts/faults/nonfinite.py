"""A NaN or an Inf: in the gradient of one layer at one rank, or in the loss."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from benchmarks.alerts.faults.fault import Fault, Site
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Gradients, Job


class NonfiniteGradient(Fault):
    """One element of one layer's gradient is bad at one rank, at one step.

    Args:
        site: Where it is put.
        value: NaN or Inf.
    """

    kind = "nonfinite"
    rules: tuple[str, ...] = ("nonfinite",)
    length = 40

    def __init__(self, site: Site, value: float = math.nan) -> None:
        self._value = value
        super().__init__(site)
        if site.job.training.scaler is not None:
            # One skipped step is what a scaler does now and then: nobody can tell it from this.
            self.kind, self.rules = "nonfinite_skipped", ("nonfinite", "loss_scaler")
        self.last_step = self.step
        self.layers = (str(site.random.choice(self.layers)),)

    def choose(self, site: Site) -> None:
        self.module = self.choose_module(site)
        self.ranks = (int(site.random.integers(len(site.job.replicas))),)
        if len(site.job.replicas) == 1:
            self.ranks = ()

    def local(self, job: Job, step: int, rank: int, gradients: Gradients) -> None:
        if self.is_on(step) and rank in (self.ranks or (0,)):
            (name,) = self.layers
            place = torch.randint(gradients[name].numel(), (1,))
            gradients[name].view(-1)[place] = self._value

    def check(self, healthy: Rows, bad: Rows) -> None:
        (own,) = self.places()
        counts = bad.column("nans")[0] + bad.column("infs")[0]
        assert counts[own] == 1, "not one element is non-finite"
        assert np.nansum(counts) == 1, "other layers are, too"


class NonfiniteLoss(Fault):
    """The loss of one rank is NaN at one step."""

    kind = "loss_nonfinite"
    rules = ("nonfinite", "loss")
    length = 40

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.last_step = self.step
        self.layers = ()

    def choose(self, site: Site) -> None:
        ranks = len(site.job.replicas)
        self.ranks = (int(site.random.integers(ranks)),) if ranks > 1 else ()

    def loss(self, job: Job, step: int, rank: int, loss: Tensor) -> Tensor:
        return loss * math.nan if self.is_on(step) and rank in (self.ranks or (0,)) else loss

    def check(self, healthy: Rows, bad: Rows) -> None:
        rank = (self.ranks or (0,))[0]
        assert math.isnan(bad.loss[0, rank]), "the loss is finite"
        assert (bad.column("nans")[0] > 0).any(), "no gradient is non-finite"
