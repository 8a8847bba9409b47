"""Modules whose outputs are measured: all that matter, those that patterns match, or given ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from torch import nn

from gradwatch._layers.layers import Layer
from gradwatch._layers.names import as_items, check_name, matching_names
from gradwatch._layers.wrappers import innermost, unwrapped_modules
from gradwatch_wire.limits import MAX_MODULES

Modules: TypeAlias = "bool | str | nn.Module | Iterable[str | nn.Module] | None"

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_ALLOWED = "True, patterns of module names, or modules"


def find_modules(
    activations: Modules,
    model: nn.Module | Mapping[str, nn.Module],
    layers: Sequence[Layer],
    *,
    is_stage: bool = False,
) -> dict[str, nn.Module]:
    """Return the chosen modules by their names in the user's own model, in order of registration.

    `True` chooses the blocks of the model, which are the items of its outermost lists
    (`ModuleList`, `Sequential`, `ModuleDict`), and the modules beside these lists; of all of them
    those that have watched parameters.

    Raises:
        TypeError: If something else than modules and patterns of their names is given.
        ValueError: If nothing is chosen, or too many, or a module that is not the model's own.
    """
    if activations is None or activations is False:
        return {}
    tops = {"": model} if isinstance(model, nn.Module) else model
    known = _called(tops, is_stage=is_stage)
    if activations is True:
        watched = {id(layer.parameter) for layer in layers}
        blocks = {id(part) for top in tops.values() for part in _outline(top, watched)}
        chosen = {name for name, module in known.items() if id(innermost(module)) in blocks}
    else:
        chosen = _given(activations, known)
    found = {name: module for name, module in known.items() if name in chosen}
    if not 0 < len(found) <= MAX_MODULES:
        msg = f"activations: 1 to {MAX_MODULES} modules, got {len(found)}"
        raise ValueError(msg)
    for name in found:
        check_name("activations", name)
    # A model that is one module, a bare Linear say, has no name of its own.
    return {name or type(innermost(module)).__name__: module for name, module in found.items()}


def _called(tops: Mapping[str, nn.Module], *, is_stage: bool) -> dict[str, nn.Module]:
    """Return all modules that have a forward pass, once each, under their first names.

    Of a wrapper and what it wraps the wrapper: its hooks run outside of compiled graphs and
    checkpoints.
    """
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for prefix, top in tops.items():
        for name, module in unwrapped_modules(top, prefix, is_stage=is_stage):
            core = innermost(module)
            if name not in found and id(core) not in seen and _has_forward(core):
                found[name] = module
            seen.add(id(core))
    return found


def _has_forward(module: nn.Module) -> bool:
    """Tell whether it can be called: lists and dicts of modules cannot."""
    return getattr(module.forward, "__func__", None) is not nn.Module.forward


def _given(activations: object, known: Mapping[str, nn.Module]) -> set[str]:
    single = isinstance(activations, nn.Module) and not isinstance(activations, Iterable)
    if not single and (isinstance(activations, bytes) or not isinstance(activations, Iterable)):
        msg = f"activations: {_ALLOWED}, got {type(activations).__name__}"
        raise TypeError(msg)
    items = [activations] if single else as_items("activations", activations)
    patterns = [item for item in items if isinstance(item, str)]
    # The model itself has no name: `*` are the modules in it.
    nameable = [name for name in known if name] or list(known)
    chosen = set(matching_names("activations", patterns, nameable)) if patterns else set()
    names = {id(innermost(module)): name for name, module in known.items()}
    for item in items:
        if isinstance(item, nn.Module):
            chosen.add(_name_of(item, names))
        elif not isinstance(item, str):
            msg = f"activations: {_ALLOWED}, got a {type(item).__name__} among them"
            raise TypeError(msg)
    return chosen


def _name_of(module: nn.Module, names: Mapping[int, str]) -> str:
    name = names.get(id(innermost(module)))
    if name is None:
        why = "is never called itself" if not _has_forward(module) else "is no part of the model"
        msg = f"activations: a {type(module).__name__} was given that {why}"
        raise ValueError(msg)
    return name


def _outline(module: nn.Module, watched: set[int], *, top: bool = True) -> Iterator[nn.Module]:
    """Yield the blocks, and the modules beside the lists that these are in."""
    core = innermost(module)
    is_list = isinstance(core, _LISTS)
    if not top and not is_list and not any(isinstance(each, _LISTS) for each in core.modules()):
        yield core
        return
    inner = [
        innermost(child)
        for child in core._modules.values()
        if child is not None and any(id(p) in watched for p in child.parameters())
    ]
    if not inner and top:
        yield core
    for child in inner:
        if is_list and not isinstance(child, _LISTS):
            yield child
        else:
            yield from _outline(child, watched, top=False)


def module_ranks(
    modules: Sequence[nn.Module], layers: Sequence[nn.Parameter], tops: Sequence[nn.Module]
) -> tuple[int | None, ...]:
    """Return the rank of each module among those that return, None where that is not known.

    Of two modules that are called once each, either one is called inside the other or all of the
    one happens before all of the other: any layer of each tells which.
    """
    parts = {id(part): part for top in tops for part in top.modules()}
    owners = Counter(id(p) for part in parts.values() for p in set(part._parameters.values()))
    # A shared layer is used in several places, and stands at the first of them.
    places = {id(p): place for place, p in enumerate(layers) if owners[id(p)] == 1}
    last = {
        number: max(own)
        for number, module in enumerate(modules)
        if (own := [places[id(p)] for p in module.parameters() if id(p) in places])
    }
    # What is inside of another has no more parts than that, and returns before it.
    order = sorted(
        last, key=lambda number: (last[number], sum(1 for _ in modules[number].modules()))
    )
    ranks = {number: rank for rank, number in enumerate(order)}
    return tuple(ranks.get(number) for number in range(len(modules)))
