"""Weights are corrupted: one of them, in all replicas or in one; or all are too large."""

from __future__ import annotations

import torch

from benchmarks.alerts.faults.fault import LOUD, Fault, Site
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Job
from benchmarks.alerts.training import Training


class WeightCorrupted(Fault):
    """One weight of a matrix becomes many times as large as the standard deviation of all.

    Args:
        site: Where it is put.
        factor: In standard deviations.
    """

    kind = "weight_corrupted"
    rules: tuple[str, ...] = LOUD
    shows_after = None

    def __init__(self, site: Site, factor: float) -> None:
        self.factor: float = factor
        super().__init__(site)
        self.last_step = self.step
        known = dict(site.job.training.named_parameters())
        self.layers = tuple(name for name in self.layers if known[name].ndim > 1)[:1]
        self._place = int(site.random.integers(known[self.layers[0]].numel()))

    def choose(self, site: Site) -> None:
        self.module = self.choose_module(site)

    @torch.no_grad()
    def before(self, job: Job, step: int) -> None:
        if step != self.step:
            return
        for training in self.victims(job):
            weight = dict(training.named_parameters())[self.layers[0]]
            weight.view(-1)[self._place] = float(self.factor or 0) * weight.float().std()

    def victims(self, job: Job) -> list[Training]:
        """Return the replicas that are damaged."""
        return list(job.distinct)


class ReplicaCorrupted(WeightCorrupted):
    """The same in the replica of one rank: what is reduced stays the same on all of them."""

    kind = "replica_weights"
    rules = ("rank_divergence",)
    needs = "ranks"
    length = 210

    def choose(self, site: Site) -> None:
        super().choose(site)
        self.ranks = (self.choose_rank(site),)

    def victims(self, job: Job) -> list[Training]:
        job.split()
        return [job.replicas[self.ranks[0]]]

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert not len(bad.own), "the reduced gradients differ"
        (rank,), (place,) = self.ranks, self.places()
        others = [each for each in range(bad.weights.shape[1]) if each != rank]
        assert len(bad.weights), "no digest was taken"
        digests = bad.weights[:, :, :, place]
        assert (digests[:, others] == digests[:, others[:1]]).all(), "the others differ"
        assert (digests[:, rank] != digests[:, others[0]]).any(1).all(), "it does not differ"


class WeightsGrown(Fault):
    """All matrices are multiplied: a bad initialisation, or a broken checkpoint."""

    kind = "exploding"
    rules = LOUD
    shows_after = None

    def __init__(self, site: Site, factor: float) -> None:
        self.factor: float = factor
        super().__init__(site)
        self.last_step = self.step

    @torch.no_grad()
    def before(self, job: Job, step: int) -> None:
        if step == self.step:
            for training in job.distinct:
                for _, each in training.named_parameters():
                    if each.ndim > 1:
                        each.mul_(float(self.factor or 1))
