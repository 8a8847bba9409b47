"""Blocks: the modules whose output gradients are watched, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from gradwatch._layers.wrappers import unwrapped_modules
from gradwatch_wire.limits import MAX_BLOCKS


def find_blocks(
    blocks: Iterable[nn.Module] | None, model: nn.Module | Mapping[str, nn.Module]
) -> dict[str, nn.Module]:
    """Return the blocks by name: their name in the model, else `block.0`, `block.1`, ...

    Raises:
        TypeError: If *blocks* is no list of modules.
        ValueError: If it is empty, too long, or names a module twice.
    """
    if blocks is None:
        return {}
    if not isinstance(blocks, Iterable):
        msg = f"blocks: a list of modules, got {type(blocks).__name__}"
        raise TypeError(msg)
    found = list(blocks)
    for block in found:
        if not isinstance(block, nn.Module):
            msg = f"blocks: modules, got {type(block).__name__}"
            raise TypeError(msg)
    if not 1 < len(found) <= MAX_BLOCKS:
        msg = f"blocks: 2 to {MAX_BLOCKS} modules, got {len(found)}"
        raise ValueError(msg)
    if len({id(block) for block in found}) < len(found):
        msg = "blocks: one module is in the list twice; its outputs could not be told apart"
        raise ValueError(msg)
    named = {"": model} if isinstance(model, nn.Module) else model
    modules = (pair for prefix, top in named.items() for pair in unwrapped_modules(top, prefix))
    known = {id(module): name for name, module in modules}
    return {known.get(id(m)) or f"block.{i}": m for i, m in enumerate(found)}
