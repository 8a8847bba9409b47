"""Bugs that look healthy: weights that stay, gradients that are old, one batch on all ranks."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.alerts.faults.fault import Fault, Site, UnfitError
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Gradients, Job
from gradwatch_wire.columns import UNCHANGED, UPDATE_COLUMNS

_UNCHANGED = UPDATE_COLUMNS.index(UNCHANGED)


class LeftOut(Fault):
    """The optimizer does not hold one module's weights, as where it was made too early."""

    kind = "layer_left_out"
    rules: tuple[str, ...] = ("weights_unchanged",)
    length = 250
    shows_after = None

    def choose(self, site: Site) -> None:
        self.module = self.choose_module(site)

    def before(self, job: Job, step: int) -> None:
        if step != self.step:
            return
        for training in job.distinct:
            known = dict(training.named_parameters())
            left = {id(known[name]) for name in self.layers}
            for group in (
                group for optimizer in training.optimizers for group in optimizer.param_groups
            ):
                group["params"] = [each for each in group["params"] if id(each) not in left]

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert len(bad.updates), "no update was looked at"
        unchanged = bad.updates[:, 0, _UNCHANGED]
        still = (unchanged == 1.0) | np.isnan(unchanged)  # NaN: of what had no gradient
        assert still[:, self.places()].all(), "the weights move"


class Stale(Fault):
    """Gradients are those of one step again and again, on each rank."""

    kind = "gradients_stale"
    rules = ("repeated_gradient",)
    shows_after = 1

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._first: dict[int, Gradients] = {}

    def choose(self, site: Site) -> None:
        if site.job.training.scaler is not None:  # its scale may change, and the gradients do not
            raise UnfitError

    def local(self, job: Job, step: int, rank: int, gradients: Gradients) -> None:
        first = self._first.setdefault(rank, {n: each.clone() for n, each in gradients.items()})
        for name, each in gradients.items():
            each.copy_(first.get(name, each))

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert np.array_equal(bad.columns[1:], bad.columns[:-1], equal_nan=True), "they change"


class NotZeroed(Fault):
    """`zero_grad()` is not called any more."""

    kind = "gradients_not_zeroed"
    rules = ("not_zeroed",)
    shows_after = 1

    def choose(self, site: Site) -> None:
        if site.job.training.scaler is not None:  # its own unscaling would be wrong first
            raise UnfitError

    def before(self, job: Job, step: int) -> None:
        job.is_zeroed = False

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert bad.carried[1:].all(), "they are emptied"


class SameBatch(Fault):
    """All ranks get the batches of one of them."""

    kind = "same_batch"
    rules = ("same_batch",)
    needs = "ranks"
    shows_after = None

    def choose(self, site: Site) -> None:
        self._source = self.choose_rank(site)

    def before(self, job: Job, step: int) -> None:
        job.data_rank = self._source

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert (bad.loss == bad.loss[:, :1]).all(), "the losses differ"


class UpdatesLost(Fault):
    """The learning rate is so small that the weights' bfloat16 loses each update to rounding."""

    kind = "updates_lost"
    rules = ("weights_unchanged",)
    length = 250
    shows_after = None

    def __init__(self, site: Site, factor: float) -> None:
        self.factor: float = factor
        super().__init__(site)

    def choose(self, site: Site) -> None:
        known = site.job.training.named_parameters()
        if any(each.dtype is not torch.bfloat16 for _, each in known):
            raise UnfitError

    def before(self, job: Job, step: int) -> None:
        for each in job.distinct:
            each.rate_factor = float(self.factor or 1)
