"""Names: which parameters are watched, and what the user calls them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from gradwatch_wire.limits import MAX_BLOCKS, MAX_GROUPS, MAX_LAYERS, MAX_NAME_BYTES

Patterns: TypeAlias = "str | Iterable[str] | None"
Group: TypeAlias = "str | torch.Tensor | Iterable[str | torch.Tensor]"

_WRAPPER_CHILDREN: Final = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One watched parameter, under its name in the user's own model."""

    name: str
    parameter: nn.Parameter


def find_layers(
    model: nn.Module | Mapping[str, nn.Module], include: Patterns, exclude: Patterns
) -> list[Layer]:
    """Return the parameters to watch, in the order of registration.

    Raises:
        TypeError: If *model* is no module and no dict of named ones, or a pattern is no string.
        ValueError: If there is nothing to watch, a pattern matches nothing, two names are equal,
            or a parameter is of a kind that cannot be watched.
    """
    layers = [Layer(name, parameter) for name, parameter in _parameters(model)]
    names = [layer.name for layer in layers]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        msg = f"model: two parameters are called {repeated[0]!a}; give the modules other names"
        raise ValueError(msg)
    wanted = set(_matching("include", include, names)) if include is not None else set(names)
    if exclude is not None:
        wanted -= set(_matching("exclude", exclude, names))
    layers = [layer for layer in layers if layer.name in wanted]
    if names and not layers:
        msg = f"include, exclude: they leave none of the model's {len(names)} parameters"
        raise ValueError(msg)
    if not any(layer.parameter.requires_grad for layer in layers):
        msg = f"model: none of its {len(layers)} watched parameters requires a gradient"
        raise ValueError(msg)
    if len(layers) > MAX_LAYERS:
        msg = f"model: {len(layers)} parameters, at most {MAX_LAYERS} can be watched; use include="
        raise ValueError(msg)
    for layer in layers:
        _check(layer)
    return layers


def find_groups(
    groups: Mapping[str, Group] | None, layers: Sequence[Layer]
) -> dict[str, frozenset[int]]:
    """Return the indices of each named group's layers.

    Raises:
        TypeError: If *groups* is no map from names to patterns or parameters.
        ValueError: If a group matches nothing, or there are too many.
    """
    if groups is None:
        return {}
    if not isinstance(groups, Mapping):
        msg = f"groups: a dict of names to patterns or parameters, got {type(groups).__name__}"
        raise TypeError(msg)
    if len(groups) > MAX_GROUPS:
        msg = f"groups: at most {MAX_GROUPS}, got {len(groups)}"
        raise ValueError(msg)
    return {name: _members(name, members, layers) for name, members in groups.items()}


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
    known = {id(m): name for prefix, top in named.items() for name, m in _submodules(top, prefix)}
    return {known.get(id(m)) or f"block.{i}": m for i, m in enumerate(found)}


def _members(name: str, members: Group, layers: Sequence[Layer]) -> frozenset[int]:
    if not isinstance(name, str):
        msg = f"groups: names are strings, got {name!r}"
        raise TypeError(msg)
    _check_name("groups", name)
    items = _items(f"groups: {name!r}", members)
    patterns = [item for item in items if isinstance(item, str)]
    parameters = {id(item) for item in items if isinstance(item, torch.Tensor)}
    if len(patterns) + len(parameters) < len(items):
        msg = f"groups: {name!r} has to hold patterns or parameters"
        raise TypeError(msg)
    names = [layer.name for layer in layers]
    matched = set(_matching(f"groups: {name!r}", patterns, names)) if patterns else set()
    found = frozenset(
        index
        for index, layer in enumerate(layers)
        if layer.name in matched or id(layer.parameter) in parameters
    )
    if not found:
        msg = f"groups: {name!r} matches no watched parameter"
        raise ValueError(msg)
    return found


def _parameters(
    model: nn.Module | Mapping[str, nn.Module],
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each parameter once, under its first name, as `named_parameters` does."""
    named = {"": model} if isinstance(model, nn.Module) else model
    if not isinstance(named, Mapping):
        msg = f"model: a torch.nn.Module or a dict of named ones, got {type(model).__name__}"
        raise TypeError(msg)
    seen: set[int] = set()
    for prefix, module in named.items():
        if not isinstance(prefix, str):
            msg = f"model: names of modules are strings, got {prefix!r}"
            raise TypeError(msg)
        if not isinstance(module, nn.Module):
            msg = f"model: {prefix!r} is no torch.nn.Module but {type(module).__name__}"
            raise TypeError(msg)
        for name, parameter in _walk(module, prefix):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter


def _walk(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Parameter]]:
    """Walk the modules without the names that DDP, compile and checkpointing put between."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield f"{prefix}.{name}" if prefix else name, parameter
    for name, child in module._modules.items():
        if child is not None:
            inner = prefix if _is_wrapped(module, name) else f"{prefix}.{name}" if prefix else name
            yield from _walk(child, inner)


def _submodules(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules under the names of the user's own model."""
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            inner = prefix if _is_wrapped(module, name) else f"{prefix}.{name}" if prefix else name
            yield from _submodules(child, inner)


def _is_wrapped(module: nn.Module, child: str) -> bool:
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    return child in _WRAPPER_CHILDREN or (child == "module" and isinstance(module, wrappers))


def _matching(what: str, patterns: Patterns, names: Sequence[str]) -> list[str]:
    """Return the names that any pattern matches; each pattern has to match one."""
    matched: list[str] = []
    for pattern in _items(what, patterns):
        if not isinstance(pattern, str):
            msg = f"{what}: patterns are strings, got {type(pattern).__name__}"
            raise TypeError(msg)
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            some = ", ".join(names[:3])
            msg = f"{what}: pattern {pattern!r} matches none of {len(names)} names ({some}, ...)"
            raise ValueError(msg)
        matched += found
    return matched


def _items(what: str, given: object) -> list[object]:
    """Return the items of a list, or the one that was given in place of it."""
    if isinstance(given, (str, torch.Tensor)):
        return [given]
    if not isinstance(given, Iterable):
        msg = f"{what}: one item or a list of them, got {type(given).__name__}"
        raise TypeError(msg)
    return list(given)


def _check(layer: Layer) -> None:
    parameter = layer.parameter
    if isinstance(parameter, UninitializedParameter):
        msg = f"model: {layer.name} is not initialized; run a forward pass before attach"
        raise ValueError(msg)
    if parameter.is_complex():
        msg = f"model: {layer.name} is {parameter.dtype}; complex gradients cannot be watched"
        raise ValueError(msg)
    _check_name("model", layer.name)


def _check_name(what: str, name: str) -> None:
    try:
        fits = len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        msg = f"{what}: the name {name[:40]!a}... is no text of at most {MAX_NAME_BYTES} bytes"
        raise ValueError(msg)
