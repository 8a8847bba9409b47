"""Wrappers that DDP, FSDP, `torch.compile` and checkpointing put around modules of a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import torch.distributed as dist
from torch import nn

from gradwatch_wire.names import Reduction

_WRAPPER_CHILDREN: Final = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
)


def unwrapped_modules(
    module: nn.Module, prefix: str, *, is_stage: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and all in it, under the names of the user's own model.

    A wrapper and what it wraps have the same name; a module that is registered twice comes twice.

    Args:
        is_stage: Whether it is one stage of a pipeline: a list counts its items from 0 in each. An
            item with a `layer_number`, as Megatron counts blocks from 1 over the whole model, is
            named by that.
    """
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            own = _number_of(child, name) if is_stage else name
            inner = prefix if _is_wrapped(module, name) else f"{prefix}.{own}" if prefix else own
            yield from unwrapped_modules(child, inner, is_stage=is_stage)


def _number_of(child: nn.Module, name: str) -> str:
    number: object = getattr(innermost(child), "layer_number", None)
    if name.isdecimal() and isinstance(number, int) and number > 0:
        return str(number - 1)
    return name


def innermost(module: nn.Module) -> nn.Module:
    """Return the module of the user's own model that a wrapper, or several, stand around."""
    inner = next(
        (m for n, m in module._modules.items() if m is not None and _is_wrapped(module, n)), None
    )
    return module if inner is None else innermost(inner)


def is_compiled(modules: Sequence[nn.Module]) -> bool:
    return any(
        is_compiled_wrapper(module) or getattr(module, "_compiled_call_impl", None) is not None
        for top in modules
        for module in top.modules()
    )


def is_compiled_wrapper(module: nn.Module) -> bool:
    """Tell whether a module is what `torch.compile` returns: its hooks run outside the graphs."""
    return hasattr(module, "_orig_mod")


def is_autograd_compiled() -> bool:
    """Tell whether torch is set to compile backward passes: then no hook may be on a parameter."""
    # Before anyone has imported Dynamo nobody can have set it.
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(getattr(dynamo.config, "compiled_autograd", False))


def find_reduction(modules: Sequence[nn.Module], world: int, data: Sequence[int] = ()) -> Reduction:
    """Return how the ranks' gradients are put together by the end of the backward pass.

    Args:
        data: Ranks that hold the same, this one among them; empty where that is not known.

    Raises:
        ValueError: If one of the modules is a `FullyShardedDataParallel`.
    """
    wrappers: list[type] = [nn.parallel.DistributedDataParallel]
    parts = [part for module in modules for part in module.modules()]
    # Before anyone has imported FSDP, no module is one.
    if (fsdp := sys.modules.get("torch.distributed.fsdp")) is not None:
        wrappers.append(fsdp.FSDPModule)
        if any(isinstance(part, fsdp.FullyShardedDataParallel) for part in parts):
            # Its shards do not say of which layer they are which part.
            msg = (
                "model: FullyShardedDataParallel cannot be watched; "
                "use torch.distributed.fsdp.fully_shard"
            )
            raise ValueError(msg)
    if any(_is_of_a_group(part, data) for part in parts):
        return Reduction.UNKNOWN
    if any(isinstance(part, tuple(wrappers)) for part in parts):
        return Reduction.MEAN
    return Reduction.NONE if world == 1 or len(data) == 1 else Reduction.UNKNOWN


def _is_of_a_group(part: nn.Module, data: Sequence[int]) -> bool:
    """Tell whether DDP averages some of the ranks only: what the others hold may be other weights.

    So it is where layers are also divided over ranks in a way that their tensors do not tell.
    """
    if not isinstance(part, nn.parallel.DistributedDataParallel):
        return False
    ranks = dist.get_process_group_ranks(part.process_group)
    return len(ranks) < dist.get_world_size() and set(ranks) != set(data)


def is_fully_sharded(module: nn.Module) -> bool:
    """Tell whether FSDP manages the parameters of a module or of a part of it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(part, fsdp.FSDPModule) for part in module.modules())


def _is_wrapped(module: nn.Module, child: str) -> bool:
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    return child in _WRAPPER_CHILDREN or (child == "module" and isinstance(module, wrappers))
