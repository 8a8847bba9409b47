"""Sizes of what waits in memory, by fixed formulas.

They decide what has to go, so they are the same on every machine and after a restart: what Python
itself says of its objects is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy.typing as npt

RECORD_BYTES: Final = 1_000
"""Bytes of a record beside its numbers and texts."""

ARRAY_BYTES: Final = 112
"""Bytes of an array beside its items."""

MAX_ITEM_BYTES: Final = 8
"""Largest size of an item of an array."""

ITEM_BYTES: Final = 100
"""Bytes of a name with its value in a map, or with its place in a list."""


class Item(Protocol):
    """A record, as far as this goes."""

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""


def array_bytes(array: npt.NDArray[Any] | None) -> int:
    """Return what an array takes, 0 for none."""
    return 0 if array is None else ARRAY_BYTES + array.nbytes


def text_bytes(text: str) -> int:
    """Return what a text takes: one character that is not ASCII makes all of them wide."""
    return len(text) if text.isascii() else 4 * len(text)


def names_bytes(names: Iterable[str]) -> int:
    return sum(ITEM_BYTES + text_bytes(name) for name in names)


@lru_cache(maxsize=64)
def labels_bytes(labels: tuple[tuple[str, object], ...]) -> int:
    """Return the memory of labels: all records of a run have the same few."""
    texts = (value for _, value in labels if isinstance(value, str))
    return names_bytes(name for name, _ in labels) + sum(map(text_bytes, texts))


@lru_cache(maxsize=64)
def keys_bytes(names: tuple[str, ...]) -> int:
    """Return the memory of a map of names to numbers: all records have the same few names."""
    return names_bytes(names)
