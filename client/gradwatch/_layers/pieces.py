"""Pieces: into how many records the layers of a step are divided, so that each record fits.

A record of part of the layers is nothing new to an aggregator: it gets one per optimizer, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from gradwatch_wire.columns import STATISTIC_COLUMNS
from gradwatch_wire.limits import MAX_PARTS, MAX_RECORD_BYTES

_ROOM_BYTES: Final = MAX_RECORD_BYTES - (1 << 16)  # the rest is for all but the layers
_STATS_BYTES: Final = 8 * len(STATISTIC_COLUMNS)
_MANIFEST_BYTES: Final = 80
"""At most so many are in a manifest for a layer besides its name: size, dtype, shard, beta2, mark.
"""
_INDEX_BYTES: Final = 3
_MODULE_BYTES: Final = 8
"""At most so many are in a manifest for a module besides its name, or in a record."""


class Named(Protocol):
    """A layer, of which only the name matters here: the background thread imports this module."""

    @property
    def name(self) -> str:
        """Its name."""


def find_pieces(
    layers: Sequence[Named], num_groups: int, num_optimizers: int, modules: Sequence[str] = ()
) -> int:
    """Return the number of records that each set of layers is divided into; 1 for most models.

    Args:
        modules: Names of the modules whose outputs are measured; each record may have all.

    Raises:
        ValueError: If a step would take more records than an aggregator reads.
    """
    module_bytes = sum(len(name.encode()) + _MODULE_BYTES for name in modules)
    room_bytes = _ROOM_BYTES - module_bytes
    if room_bytes < _ROOM_BYTES // 2:
        msg = (
            f"activations: the names of {len(modules)} modules are {module_bytes} bytes, at most "
            f"{_ROOM_BYTES // 2} are sent; choose fewer"
        )
        raise ValueError(msg)
    name_bytes = max((len(layer.name.encode()) for layer in layers), default=0)
    declared = name_bytes + _MANIFEST_BYTES + _INDEX_BYTES * num_groups
    num_pieces = -(-len(layers) * max(declared, _STATS_BYTES) // room_bytes)
    if num_pieces * max(1, num_optimizers) > MAX_PARTS:
        msg = (
            f"model: {len(layers)} layers with names of up to {name_bytes} bytes, trained by "
            f"{num_optimizers} optimizers, are {num_pieces * num_optimizers} records per step, at "
            f"most {MAX_PARTS} are read; choose layers with include="
        )
        raise ValueError(msg)
    return max(num_pieces, 1)


def piece_slices(num_layers: int, num_pieces: int) -> list[slice]:
    """Return which of so many layers, in order, are in each piece; as even as can be."""
    ends = [num_layers * number // num_pieces for number in range(num_pieces + 1)]
    return [slice(*ends[number : number + 2]) for number in range(num_pieces)]
