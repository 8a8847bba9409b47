"""Groups: names that the user gives to sets of layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch

from gradwatch._layers.layers import Layer
from gradwatch._layers.names import as_items, check_name, matching_names
from gradwatch_wire.limits import MAX_GROUPS

Group: TypeAlias = "str | torch.Tensor | Iterable[str | torch.Tensor]"


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


def _members(name: str, members: Group, layers: Sequence[Layer]) -> frozenset[int]:
    if not isinstance(name, str):
        msg = f"groups: names are strings, got {name!r}"
        raise TypeError(msg)
    check_name("groups", name)
    items = as_items(f"groups: {name!r}", members)
    patterns = [item for item in items if isinstance(item, str)]
    parameters = {id(item) for item in items if isinstance(item, torch.Tensor)}
    if len(patterns) + len(parameters) < len(items):
        msg = f"groups: {name!r} has to hold patterns or parameters"
        raise TypeError(msg)
    names = [layer.name for layer in layers]
    matched = set(matching_names(f"groups: {name!r}", patterns, names)) if patterns else set()
    found = frozenset(
        index
        for index, layer in enumerate(layers)
        if layer.name in matched or id(layer.parameter) in parameters
    )
    if not found:
        msg = f"groups: {name!r} matches no watched parameter"
        raise ValueError(msg)
    return found
