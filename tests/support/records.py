"""Records as tests need them, with what does not matter filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwatch_wire import Column, Manifest, Stats


def manifest_of(names: Sequence[str], **changes: Any) -> Manifest:
    """Return a manifest of layers of 10 elements, in forward order unless told otherwise."""
    settings: dict[str, Any] = {
        "manifest_id": 1,
        "names": tuple(names),
        "numel": Column.pack("<u8", [10] * len(names)),
        "dtypes": ("float32",) * len(names),
        "order": "forward",
    }
    return Manifest(**settings | changes)


def stats_of(step: int, l2: Sequence[float], **scalars: float) -> Stats:
    """Return statistics with an L2 norm for each layer."""
    return Stats(manifest_id=1, step=step, scalars=scalars, columns={"l2": Column.pack("<f8", l2)})
