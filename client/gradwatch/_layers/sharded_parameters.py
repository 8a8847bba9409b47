"""Tensors that FSDP2 keeps beside its shards: whole parameters, and unreduced gradients.

FSDP2 has no public names for either. Where a version of torch keeps them elsewhere, none are found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn


def whole_parameters(modules: Iterable[nn.Module]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each sharded parameter with the whole one that the graph of a forward pass holds.

    Where none are found the order of the layers is taken from the calls of the modules.
    """
    for group in _groups(modules):
        for parameter in getattr(group, "fsdp_params", ()):
            whole = getattr(parameter, "_unsharded_param", None)
            if whole is not None:
                yield parameter.sharded_param, whole


def has_unreduced(modules: Iterable[nn.Module]) -> bool:
    """Tell whether gradients wait for a later backward pass to reduce them.

    So it is after a pass under `set_requires_gradient_sync(False)`, and under
    `set_requires_all_reduce(False)`: the shards have no gradient of it.
    """
    for group in _groups(modules):
        if getattr(group, "_partial_reduce_output", None) is not None:
            return True
        for parameter in getattr(group, "fsdp_params", ()):
            if getattr(parameter, "unsharded_accumulated_grad", None) is not None:
                return True
            if getattr(getattr(parameter, "_unsharded_param", None), "grad", None) is not None:
                return True
    return False


def _groups(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """Yield the groups of parameters that modules gather together; older torch has one each."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind: type | None = getattr(fsdp, "FSDPModule", None)
    for module in modules if kind is not None else ():
        if isinstance(module, kind):  # type: ignore[arg-type]  # not None here
            state: Any = module._get_fsdp_state()  # type: ignore[operator]  # it has
            groups = getattr(state, "_fsdp_param_groups", None)
            yield from [state._fsdp_param_group] if groups is None else groups
