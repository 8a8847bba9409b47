"""One rank is not as the others: its own gradients, or what it has after the reduction."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.alerts.faults.fault import Fault, Site, expect
from benchmarks.alerts.recorded import FloatArray, Rows
from benchmarks.alerts.recording import Gradients, Job


class RankLocal(Fault):
    """The gradients of one rank are too large before they are averaged: bad hardware.

    Args:
        site: Where it is put.
        factor: What they are multiplied by.
    """

    kind = "rank_local"
    rules = ("rank_divergence", "exploding", "nonfinite", "loss")
    needs = "ranks"

    def __init__(self, site: Site, factor: float) -> None:
        self.factor: float = factor
        super().__init__(site)

    def choose(self, site: Site) -> None:
        self.ranks = (self.choose_rank(site),)

    def local(self, job: Job, step: int, rank: int, gradients: Gradients) -> None:
        if self.is_on(step) and rank in self.ranks:
            for each in gradients.values():
                each.mul_(float(self.factor or 1))

    def check(self, healthy: Rows, bad: Rows) -> None:
        for rank in range(bad.local_l2.shape[1]):
            one, other = healthy.local_l2[0, rank], bad.local_l2[0, rank]
            alive = one > 0
            factor = float(self.factor or 1) if rank in self.ranks else 1.0
            expect(other[alive] / one[alive], factor, f"ratio of the local norms of rank {rank}")


class Unreduced(Fault):
    """One rank steps with its own gradients of some layers: a missing or broken reduction.

    Args:
        site: Where it is put.
        everywhere: Whether it is all layers, else those of one module.
    """

    kind = "rank_divergence"
    rules = ("rank_divergence",)
    needs = "ranks"

    def __init__(self, site: Site, *, everywhere: bool = False) -> None:
        self._everywhere = everywhere
        self._mine: Gradients = {}
        super().__init__(site)

    def choose(self, site: Site) -> None:
        self.ranks = (self.choose_rank(site),)
        if not self._everywhere:
            self.module = self.choose_module(site)

    def before(self, job: Job, step: int) -> None:
        job.split()

    def local(self, job: Job, step: int, rank: int, gradients: Gradients) -> None:
        if rank in self.ranks:
            self._mine = {name: each.clone() for name, each in gradients.items()}

    def reduced(self, job: Job, step: int, rank: int, gradients: Gradients) -> Gradients:
        if rank not in self.ranks:
            return gradients
        return {name: self.own(name, each) for name, each in gradients.items()}

    def own(self, name: str, reduced: torch.Tensor) -> torch.Tensor:
        is_own = name in self.layers or self._everywhere
        return self._mine.get(name, reduced) if is_own else reduced

    def check(self, healthy: Rows, bad: Rows) -> None:
        (rank,) = self.ranks
        world = bad.loss.shape[1]
        for step in range(len(bad)):
            values = [_of_rank(bad, step, each) for each in range(world)]
            others = [each for each in range(world) if each != rank]
            for other in others:
                assert np.array_equal(values[other], values[others[0]], equal_nan=True), "others"
            differ = (values[rank] != values[others[0]]) & ~np.isnan(values[rank])
            if step == 0:
                assert differ.any(), "does not differ"
                elsewhere = np.delete(differ, self.places(), axis=1)
                assert self._everywhere or not elsewhere.any(), "others differ"


class BitError(Unreduced):
    """One element of one layer is wrong on one rank after each reduction."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.layers = (str(site.random.choice(self.layers)),)

    def own(self, name: str, reduced: torch.Tensor) -> torch.Tensor:
        if name not in self.layers:
            return reduced
        wrong = reduced.clone()
        largest = int(wrong.abs().argmax())
        wrong.view(-1)[largest] *= 2.0
        return wrong


def _of_rank(rows: Rows, step: int, rank: int) -> FloatArray:
    for number, (at, of) in enumerate(rows.own_at.tolist()):
        if (at, of) == (step, rank):
            found: FloatArray = rows.own[number]
            return found
    columns: FloatArray = rows.columns[step]
    return columns
