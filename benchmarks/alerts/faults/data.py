"""The data are bad: too large, with the wrong labels, or always the same."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.alerts.faults.fault import LOUD, Fault, Site, UnfitError
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Job
from benchmarks.alerts.training import Batch


class _Spoiled(Fault):
    """Batches are changed while it lasts."""

    def before(self, job: Job, step: int) -> None:
        for training in job.distinct:
            training.spoil = self.spoil if self.is_on(step) else None

    def spoil(self, batch: Batch) -> Batch:
        raise NotImplementedError


class BadData(_Spoiled):
    """Inputs are too large for one to six steps.

    Args:
        site: Where it is put.
        factor: By how much.
    """

    kind = "bad_data"
    rules = LOUD
    shows_after = None

    def __init__(self, site: Site, factor: float) -> None:
        self.factor: float = factor
        super().__init__(site)
        self.last_step = self.step + int(site.random.integers(6))

    def choose(self, site: Site) -> None:
        if not site.job.training.fork().batch(site.step, 0)[0].is_floating_point():
            raise UnfitError

    def spoil(self, batch: Batch) -> Batch:
        return batch[0] * float(self.factor or 1), *batch[1:]


class LabelsShuffled(_Spoiled):
    """Labels, or the order of tokens, are shuffled from a step on. No rule of ours is about that;
    those about the loss may tell it."""

    kind = "labels_shuffled"
    rules = LOUD
    shows_after = None

    def choose(self, site: Site) -> None:
        if len(site.job.training.fork().batch(site.step, 0)[0]) < 2:
            raise UnfitError

    def spoil(self, batch: Batch) -> Batch:
        if len(batch) == 1:
            return (batch[0][:, torch.randperm(batch[0].shape[1])],)
        return *batch[:-1], batch[-1][torch.randperm(len(batch[-1]))]

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert not np.array_equal(healthy.loss, bad.loss), "the loss is the same"


class Repeated(_Spoiled):
    """The same batch again and again. No rule of ours is about that."""

    kind = "data_repeated"
    rules = ()
    shows_after = None
    _first: Batch | None = None

    def spoil(self, batch: Batch) -> Batch:
        if self._first is None:
            self._first = tuple(each.clone() for each in batch)
        return self._first
