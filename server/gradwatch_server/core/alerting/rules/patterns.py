"""Patterns by which a rule is limited to runs, layers or groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from gradwatch_server.core.arrays import BoolArray
from gradwatch_wire.limits import MAX_NAME_BYTES

MAX_PATTERNS: Final = 64
"""Patterns of one setting: each is tried on each layer."""

NOT: Final = "!"
"""First character of a pattern of names that are left out."""


def _listed(given: Any) -> Any:
    if isinstance(given, str):
        text = "Input should be a list of patterns, such as {example}"
        raise PydanticCustomError("pattern_list", text, {"example": f'["{given[:40]}"]'})
    return given


Pattern = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_NAME_BYTES, pattern=r"^!?[^!]")
]
Patterns: TypeAlias = Annotated[
    tuple[Pattern, ...], Field(max_length=MAX_PATTERNS), BeforeValidator(_listed)
]


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Tell whether a name is one of those that patterns are of; without patterns each is.

    `*`, `?` and `[abc]` are as in `fnmatch.fnmatchcase`. A pattern after `!` leaves out what it
    matches; if all are such, the rest is in.
    """
    wanted = [pattern for pattern in patterns if not pattern.startswith(NOT)]
    return (not wanted or _any(wanted, name)) and not _any(
        (pattern[1:] for pattern in patterns if pattern.startswith(NOT)), name
    )


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def matching_layers(patterns: tuple[str, ...], names: tuple[str, ...]) -> BoolArray:
    """Return the layers whose names match, (layers,)."""
    return np.array([matches(patterns, name) for name in names], dtype=np.bool_)


def layers_in_groups(
    patterns: tuple[str, ...], groups: Mapping[str, BoolArray], num_layers: int
) -> BoolArray:
    """Return the layers in a group whose name matches, (layers,)."""
    in_groups: BoolArray = np.zeros(num_layers, dtype=np.bool_)
    for name, members in groups.items():
        if matches(patterns, name):
            in_groups |= members
    return in_groups
