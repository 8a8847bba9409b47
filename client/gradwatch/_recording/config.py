"""What `attach` found out and the watch works by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradwatch._layers.layers import Layer


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """The arguments of `attach`, checked, and what the environment says.

    Args:
        modules: The models as they were given.
        layers: Watched parameters, in the order of registration.
        groups: Named group to indices into `layers`.
        optimizers: Those whose steps are collected.
        scaler: The GradScaler in use.
        blocks: Block names to modules, input side first.
        columns: Statistics asked for, None for those that come for free.
        every: Optimizer steps between collections.
        report_every: Collections per record.
        reduction: How the ranks' gradients have been put together at the point of collection.
        distributed: Whether there are other ranks.
        local: Whether to measure each rank's own gradient before the reduction, too.
    """

    modules: Sequence[nn.Module]
    layers: Sequence[Layer]
    groups: Mapping[str, frozenset[int]]
    optimizers: Sequence[Optimizer]
    scaler: GradScaler | None
    blocks: Mapping[str, nn.Module]
    columns: Sequence[str] | None
    every: int
    report_every: int
    reduction: str
    distributed: bool
    local: bool

    def members(self, optimizer: Optimizer) -> frozenset[int]:
        """Return the indices of the layers that *optimizer* trains."""
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return frozenset(i for i, layer in enumerate(self.layers) if id(layer.parameter) in own)
