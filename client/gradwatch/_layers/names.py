"""Names of layers: patterns that choose among them, and what the wire takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch

from gradwatch_wire.limits import MAX_NAME_BYTES

Patterns: TypeAlias = "str | Iterable[str] | None"


def matching_names(what: str, patterns: Patterns, names: Sequence[str]) -> list[str]:
    """Return the names that any pattern matches.

    Args:
        patterns: One or several, `fnmatch` style.

    Raises:
        TypeError: If a pattern is no string.
        ValueError: If a pattern matches nothing.
    """
    matched: list[str] = []
    for pattern in as_items(what, patterns):
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


def as_items(what: str, given: object) -> list[object]:
    """Return the items of a list, or the one that was given in place of it.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(given, (str, torch.Tensor)):
        return [given]
    if not isinstance(given, Iterable):
        msg = f"{what}: one item or a list of them, got {type(given).__name__}"
        raise TypeError(msg)
    return list(given)


def check_name(what: str, name: str) -> None:
    """Refuse a name that the wire does not take.

    Raises:
        ValueError: If it is too long, or no text.
    """
    try:
        fits = len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        msg = f"{what}: the name {name[:40]!a}... is no text of at most {MAX_NAME_BYTES} bytes"
        raise ValueError(msg)
