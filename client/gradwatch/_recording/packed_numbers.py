"""Memory on a device from which the numbers of a record go to the host, in one copy.

The kernel writes its rows there, and single numbers are put before them as they become known: none
has to be brought together with the others before it is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gradwatch_wire.columns import MEASURED_COLUMNS

NUM_ROWS: Final = len(MEASURED_COLUMNS)

MIN_OTHERS: Final = 256
"""Numbers beside the rows that there is room for, in any case."""

OTHERS_PER_LAYER: Final = 2
"""And for each layer: columns that others than the kernel measure."""

ITEM_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class PackedSlice:
    """Tensor that is copied to the host.

    Args:
        numbers: (numbers,) float64, in none of which a NaN has bits of its own.
    """

    numbers: Tensor
    begins: Sequence[int]


class PackedNumbers:
    """Numbers of one record and device. Each NaN in it is a plain one, without bits of its own.

    Attributes:
        rows: (NUM_ROWS, layers) float64, for the kernel to write.
    """

    def __init__(self, num_layers: int, device: torch.device) -> None:
        self._first = MIN_OTHERS + OTHERS_PER_LAYER * num_layers
        size = self._first + NUM_ROWS * num_layers
        self._memory = torch.empty(size, dtype=torch.float64, device=device)
        self._begin = self._memory.data_ptr()
        self._end = self._begin + ITEM_BYTES * size
        self.rows = self._memory[self._first :].view(NUM_ROWS, num_layers)

    def holds(self, values: Mapping[str, Tensor]) -> bool:
        return all(self._find(column) is not None for column in values.values())

    def keep(self, number: Tensor) -> Tensor | None:
        """Copy a number, one element of any real dtype on this device, to here.

        Returns:
            Its copy, 0-d float64; None without room.
        """
        if not self._first:
            return None
        self._first -= 1
        place = self._memory[self._first]
        write_plain(number.detach().reshape(()), place)
        return place

    def put_together(self, values: Sequence[Tensor]) -> PackedSlice | None:
        """Bring the values that are elsewhere to here.

        Args:
            values: 0-d and 1-d, of any real dtype on this device.

        Returns:
            All of them in as much memory as holds them; None without room.
        """
        found = [self._find(value) for value in values]
        missing: dict[torch.dtype, list[int]] = {}
        for place, begin in enumerate(found):
            if begin is None:
                missing.setdefault(values[place].dtype, []).append(place)
        if sum(values[place].numel() for own in missing.values() for place in own) > self._first:
            return None
        for own in missing.values():
            flat = [values[place].detach().reshape(-1) for place in own]
            sizes = [len(each) for each in flat]
            self._first -= sum(sizes)
            target = self._memory[self._first : self._first + sum(sizes)]
            write_plain(flat[0] if len(flat) == 1 else torch.cat(flat), target)
            begin = self._first
            for place, size in zip(own, sizes, strict=True):
                found[place] = begin
                begin += size
        begins = [begin for begin in found if begin is not None]
        ends = [begin + value.numel() for begin, value in zip(begins, values, strict=True)]
        first = self._first
        return PackedSlice(self._memory[first : max(ends)], [begin - first for begin in begins])

    def _find(self, value: Tensor) -> int | None:
        """Return where a value is in this memory, None if it is elsewhere."""
        if type(value) is not Tensor or value.dtype is not torch.float64:
            return None
        begin = value.data_ptr()
        if not self._begin <= begin < self._end or not value.is_contiguous():
            return None
        return (begin - self._begin) // ITEM_BYTES


def is_far(device: torch.device) -> bool:
    """Tell whether numbers there have to be copied before the host can read them."""
    return device.type != "cpu"


def write_plain(numbers: Tensor, target: Tensor) -> None:
    """Write numbers to float64 memory of the same shape; a NaN loses the bits it may have.

    A NaN of a shorter type has none that float64 has at its end, and a kernel of the device writes
    a literal one.
    """
    if numbers.dtype is torch.float64:
        torch.nan_to_num(numbers, nan=math.nan, posinf=math.inf, neginf=-math.inf, out=target)
    else:
        target.copy_(numbers)
