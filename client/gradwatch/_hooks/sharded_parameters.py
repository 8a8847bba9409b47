"""The whole parameters that FSDP2 puts in place of its shards during a forward pass."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn


def whole_parameters(modules: Iterable[nn.Module]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each sharded parameter with the whole one that the graph of a forward pass holds.

    FSDP2 has no public name for the latter. Where a version of torch keeps it elsewhere, none are
    found, and the order is then taken from the calls of the modules.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    if kind is None:
        return
    for module in modules:
        if isinstance(module, kind):
            for group in _groups(module):
                for parameter in getattr(group, "fsdp_params", ()):
                    whole = getattr(parameter, "_unsharded_param", None)
                    if whole is not None:
                        yield parameter.sharded_param, whole


def _groups(module: Any) -> list[Any]:
    """Return the groups of parameters that a module gathers together; older torch has one."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return [state._fsdp_param_group] if groups is None else list(groups)
