"""From the devices to the host without waiting: copies into pinned memory that the watch owns."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from gradwatch._faults import Faults
from gradwatch._pending.numbers import Numbers, NumbersAtHand, Values
from gradwatch._pending.ring import ITEM_BYTES, Ring
from gradwatch._recording.packed_numbers import PackedNumbers, PackedSlice, is_far, write_plain
from gradwatch._statistics.capture import in_capture
from gradwatch._statistics.devices import pack, places_by_device

RING_BYTES: Final = 4 << 20
"""Pinned memory of a watch, once anything it measures is on a GPU."""

MIN_RECORDS: Final = 4
"""Records that it holds in any case, however large they are: then it is larger."""

_idle_lock: Final = threading.Lock()
_idle: Final[list[PinnedRing]] = []
"""Rings of watches that are closed. Pinned memory is never given back: a copy may be on its way,
and to give it back is a call into the driver."""


class Readback:
    """Enqueues copies to the host. All is called in the training thread."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._ring: PinnedRing | None = None

    def prepare(self) -> None:
        """Allocate the pinned memory now, which takes the driver a while."""
        self._find_ring(1)

    def start(
        self, values: Sequence[Tensor], packed: Mapping[torch.device, PackedNumbers] | None = None
    ) -> Values:
        """Enqueue the copies of all values, packed into one for each device.

        Args:
            values: 0-d and 1-d, of any real dtype, each on its device, written by work enqueued on
                that device's current stream; they may be changed afterwards.
            packed: Device to memory in which some of them are already. Nothing may be put there
                afterwards.
        """
        sizes = [value.numel() for value in values]
        device = values[0].device
        if all(value.device == device for value in values):  # nearly always, and in each step
            places: Mapping[torch.device, Sequence[int]] = {device: range(len(values))}
        else:
            places = places_by_device(values)
        sources = []
        for device, own in places.items():
            mine = [values[place] for place in own]
            begins, numbers = self._copy(mine, packed.get(device) if packed else None)
            sources.append((dict(zip(own, begins, strict=True)), numbers))
        return Values(sizes, sources)

    def close(self) -> None:
        """Leave the pinned memory to the next watch; what is on its way to it still arrives."""
        if self._ring is not None:
            with _idle_lock:
                _idle.append(self._ring)
            self._ring = None

    def _copy(
        self, values: Sequence[Tensor], packed: PackedNumbers | None
    ) -> tuple[Sequence[int], Numbers | None]:
        """Return where the values of one device begin, and the numbers; None without room."""
        begins = [0, *accumulate(map(Tensor.numel, values[:-1]))]
        if not is_far(values[0].device):
            return begins, NumbersAtHand(b"".join(map(_bytes_of, values)))
        if self._is_captured(values[0].device):
            return [0] * len(values), None
        part = packed.put_together(values) if packed is not None else None
        if part is None:
            part = PackedSlice(pack(values), begins)
            write_plain(part.numbers, part.numbers)
        return part.begins, self._find_ring(len(part.numbers)).copy(part.numbers)

    def _is_captured(self, device: torch.device) -> bool:
        """Tell whether replays would copy once more, over the numbers of other records."""
        if device.type != "cuda":
            msg = f"numbers on {device.type} cannot be brought to the host without a wait"
            raise ValueError(msg)
        with torch.cuda.device(device):
            return in_capture(self._faults)

    def _find_ring(self, count: int) -> PinnedRing:
        ring = self._ring
        if ring is None or len(ring) < MIN_RECORDS * count:
            self.close()
            size = max(RING_BYTES // ITEM_BYTES, 2 * MIN_RECORDS * count)
            ring = self._ring = _take_idle(size) or PinnedRing(size)
        return ring


def _take_idle(size: int) -> PinnedRing | None:
    with _idle_lock:
        for place, ring in enumerate(_idle):
            if len(ring) >= size:
                return _idle.pop(place)
    return None


class PinnedRing:
    """A ring in pinned memory.

    Args:
        size: Elements of 8 bytes.
    """

    def __init__(self, size: int) -> None:
        # Of the host, whatever `torch.set_default_device` says.
        self._memory = _new_memory(size)
        words = (ctypes.c_uint64 * size).from_address(self._memory.data_ptr())
        self._ring = Ring(memoryview(words).cast("B").cast("Q"))

    def __len__(self) -> int:
        return len(self._ring)

    def copy(self, packed: Tensor) -> Numbers | None:
        """Enqueue the copy of (numbers,) float64, on its device's current stream.

        A NaN in it must not be that of the ring.

        Returns:
            What reads them; None if there is no room.
        """
        found = self._ring.take(packed.numel())
        if found is None:
            return None
        start, numbers = found
        self._memory[start : start + packed.numel()].copy_(packed, non_blocking=True)
        return numbers


def _new_memory(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float64, device="cpu", pin_memory=True)


def _bytes_of(value: Tensor) -> bytes:
    """Return the numbers of a 0-d or 1-d tensor on the CPU as native float64."""
    own = value
    if value.dtype is not torch.float64 or not value.is_contiguous():
        own = value.detach().reshape(-1).to(torch.float64).contiguous()
    pointer = own.data_ptr()
    if not pointer:  # of a class that wraps another tensor
        return array("d", own.detach().reshape(-1).tolist()).tobytes()
    return ctypes.string_at(pointer, ITEM_BYTES * own.numel())
