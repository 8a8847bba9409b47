"""A module gets no gradient any more: cut out of the graph, or frozen."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.alerts.faults.fault import Fault, Site
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Job

_KINDS = (nn.Linear, nn.Conv2d, nn.Embedding, nn.LayerNorm)


class Detached(Fault):
    """Its weights are used detached, as after a wrong `.detach()` or `.data`."""

    kind = "layer_missing"
    rules: tuple[str, ...] = ("layer_missing",)

    def choose(self, site: Site) -> None:
        self.module = self.choose_module(site, _KINDS)

    def before(self, job: Job, step: int) -> None:
        if step == self.step:
            for training in job.distinct:
                assert self.module is not None
                _cut(training.model.get_submodule(self.module))

    def check(self, healthy: Rows, bad: Rows) -> None:
        own = self.places()
        assert healthy.present[0, own].all(), "had no gradient before"
        assert not bad.present[:, own].any(), "has a gradient"
        assert bad.trainable[:, own].all() == (self.kind == "layer_missing"), "requires_grad"


class Frozen(Detached):
    """`requires_grad` is switched off, as is done on purpose: no rule has to say anything."""

    kind = "layer_frozen"
    rules = ()

    def before(self, job: Job, step: int) -> None:
        if step == self.step:
            for training in job.distinct:
                assert self.module is not None
                training.model.get_submodule(self.module).requires_grad_(False)


def _cut(module: nn.Module) -> None:
    original = module.forward
    state = {"inside": False}

    def forward(*args: Any, **settings: Any) -> Any:
        if state["inside"]:
            return original(*args, **settings)
        fixed = {name: each.detach() for name, each in module.named_parameters()}
        state["inside"] = True
        try:
            return torch.func.functional_call(module, fixed, args, settings)
        finally:
            state["inside"] = False

    module.forward = forward
