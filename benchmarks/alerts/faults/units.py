"""Units stop to answer: ReLU units die, tanh units saturate."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from benchmarks.alerts.faults.fault import Fault, Site, UnfitError
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Job
from gradwatch_wire.columns import MEASURED_COLUMNS


class _Bias(Fault):
    """The bias in front of an activation is moved for some of the units.

    Args:
        site: Where it is put.
        share: Of the units.
    """

    activation: type[nn.Module] = nn.ReLU
    move = -1e4

    def __init__(self, site: Site, share: float = 1.0) -> None:
        self.share = share
        super().__init__(site)
        self.last_step = self.step

    def choose(self, site: Site) -> None:
        zeros = site.columns[MEASURED_COLUMNS.index("zeros")]
        sizes = {name: p.numel() for name, p in site.job.training.named_parameters()}
        fit = []
        for name, each in site.job.training.model.named_modules():
            if isinstance(each, nn.Sequential):
                for place, (_, after) in enumerate(pairwise(each)):
                    own = ".".join(part for part in (name, str(place)) if part)
                    if not isinstance(after, self.activation) or f"{own}.bias" not in site.layers:
                        continue
                    layer = site.layers.index(f"{own}.weight")
                    if zeros[layer] < 0.3 * sizes[f"{own}.weight"]:
                        fit.append(own)
        if not fit:
            raise UnfitError
        self.module = str(site.random.choice(fit))

    @torch.no_grad()
    def before(self, job: Job, step: int) -> None:
        if step != self.step:
            return
        assert self.module is not None
        for training in job.distinct:
            bias = training.model.get_submodule(self.module).bias
            assert isinstance(bias, nn.Parameter)
            bias[: max(1, round(self.share * len(bias)))] += self.move

    def zero_share(self, rows: Rows, step: int) -> float:
        """Return the share of zeros in the weight's gradient."""
        place = self.site.layers.index(f"{self.module}.weight")
        known = dict(self.site.job.training.named_parameters())
        return float(rows.column("zeros")[step, place]) / known[self.site.layers[place]].numel()


class DeadUnits(_Bias):
    """All ReLU units of a module are off for every input."""

    kind = "dead_layer"
    rules = ("dead_layer", "vanishing")

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert self.zero_share(healthy, 0) < 1, "was dead before"
        assert self.zero_share(bad, 0) == 1, "is alive"


class SomeDeadUnits(_Bias):
    """Nine tenths of the ReLU units of a module are off for every input."""

    kind = "zero_fraction"
    rules = ("dead_layer", "vanishing", "loss")

    def __init__(self, site: Site) -> None:
        super().__init__(site, 0.9)

    def check(self, healthy: Rows, bad: Rows) -> None:
        assert self.zero_share(healthy, 0) < 0.5, "zeros before"
        assert 0.8 < self.zero_share(bad, 0) < 1, "not as many zeros as stated"


class Saturated(_Bias):
    """All tanh units of a module are at their end for every input."""

    kind = "vanishing"
    rules = ("vanishing", "dead_layer")
    activation = nn.Tanh
    move = 40.0

    def check(self, healthy: Rows, bad: Rows) -> None:
        place = self.site.layers.index(f"{self.module}.weight")
        before, after = (rows.column("l2")[0, place] for rows in (healthy, bad))
        assert after < 1e-3 * before, f"{after} after {before} is not saturated"
