"""Selection of what a watch collects, and how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradwatch._layers.layers import Layer
from gradwatch._layers.parallel import Parallel
from gradwatch._layers.tracker import LayerTracker
from gradwatch_wire.names import Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """Settings of the recorder: arguments of `attach`, checked, and what the model says.

    Args:
        layers: Watched parameters, in the order of registration; see `LayerTracker`.
        groups: Named group to indices into `layers`.
        optimizers: Those whose steps are collected; one that is replaced gives its place up.
        scaler: The GradScaler in use, None without one or if it is switched off.
        columns: Statistics asked for, None for those that come for free.
        reduction: How the ranks' gradients have been put together at the point of collection.
    """

    layers: Sequence[Layer]
    tracker: LayerTracker
    groups: Mapping[str, frozenset[int]]
    optimizers: list[Optimizer]
    scaler: GradScaler | None
    is_scaler_given: bool
    modules: Sequence[nn.Module]
    first_step: int
    columns: Sequence[str] | None
    report_every: int
    is_autograd_compiled: bool
    reduction: Reduction
    num_pieces: int = 1
    module_names: Sequence[str] = ()
    parallel: Parallel = field(default_factory=Parallel)

    @property
    def may_reduce(self) -> bool:
        """Possibility that the script itself reduces gradients after the backward pass."""
        return self.reduction == Reduction.UNKNOWN or self.parallel.is_divided

    def identities(self) -> frozenset[int]:
        return frozenset(id(layer.parameter) for layer in self.layers)

    def members(self, optimizer: Optimizer) -> frozenset[int]:
        """Return the indices of the layers that *optimizer* trains."""
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return frozenset(i for i, layer in enumerate(self.layers) if id(layer.parameter) in own)
