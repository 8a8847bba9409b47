"""Layers: which parameters are watched, under the names of the user's own model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import UninitializedParameter

from gradwatch._layers.names import Patterns, check_name, matching_names
from gradwatch._layers.wrappers import unwrapped_modules
from gradwatch_wire.limits import MAX_LAYERS


@dataclass(frozen=True, slots=True)
class Layer:
    """One watched parameter, under its name in the user's own model."""

    name: str
    parameter: nn.Parameter


def find_layers(
    model: nn.Module | Mapping[str, nn.Module],
    include: Patterns,
    exclude: Patterns,
    *,
    is_stage: bool = False,
    may_be_empty: bool = False,
) -> list[Layer]:
    """Return the parameters to watch, in the order of registration; those without elements not.

    Args:
        include: Patterns of those to watch, None for all.
        is_stage: Whether it is one stage of a pipeline; see `unwrapped_modules`.
        may_be_empty: Whether a model without parameters is a rank that other ranks train beside.

    Raises:
        TypeError: If *model* is no module and no dict of named ones, or a pattern is no string.
        ValueError: If there is nothing to watch, a pattern matches nothing, two names are equal,
            or a parameter is of a kind that cannot be watched.
    """
    layers = [Layer(name, parameter) for name, parameter in _parameters(model, is_stage=is_stage)]
    if not layers and may_be_empty:
        return []
    names = [layer.name for layer in layers]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        msg = f"model: two parameters are called {repeated[0]!a}; give the modules other names"
        raise ValueError(msg)
    wanted = set(matching_names("include", include, names)) if include is not None else set(names)
    if exclude is not None:
        wanted -= set(matching_names("exclude", exclude, names))
    layers = [layer for layer in layers if layer.name in wanted]
    if names and not layers:
        msg = f"include, exclude: they leave none of the model's {len(names)} parameters"
        raise ValueError(msg)
    layers = [layer for layer in layers if _has_elements(layer.parameter)]
    if not any(layer.parameter.requires_grad for layer in layers):
        msg = f"model: none of its {len(layers)} watched parameters requires a gradient"
        raise ValueError(msg)
    if len(layers) > MAX_LAYERS:
        msg = f"model: {len(layers)} parameters, at most {MAX_LAYERS} can be watched; use include="
        raise ValueError(msg)
    for layer in layers:
        _check(layer)
    return layers


def _parameters(
    model: nn.Module | Mapping[str, nn.Module], *, is_stage: bool
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
        for path, owner in unwrapped_modules(module, prefix, is_stage=is_stage):
            for name, parameter in owner._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{path}.{name}" if path else name, parameter


def _has_elements(parameter: nn.Parameter) -> bool:
    # A norm of nothing would be zero, and the layer dead.
    return isinstance(parameter, UninitializedParameter) or parameter.numel() > 0


def _check(layer: Layer) -> None:
    parameter = layer.parameter
    if isinstance(parameter, UninitializedParameter):
        msg = f"model: {layer.name} is not initialized; run a forward pass before attach"
        raise ValueError(msg)
    if not parameter.is_leaf:
        msg = (
            f"model: {layer.name} is no parameter of its own but computed from others; leave it "
            "out with exclude=, and watch the model that has those"
        )
        raise ValueError(msg)
    if parameter.is_complex():
        msg = f"model: {layer.name} is {parameter.dtype}; complex gradients cannot be watched"
        raise ValueError(msg)
    check_name("model", layer.name)
