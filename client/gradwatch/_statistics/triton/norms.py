"""Norms of single tensors on a device: a launch leaves the parts of one, another one joins them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Iterable
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from gradwatch._statistics.triton import norm_kernel, reduce_kernel
from gradwatch._statistics.triton.norm_kernel import combine_norms, keep_larger, norm_parts
from gradwatch._statistics.triton.plan import (
    FORMATS,
    MIN_TILES,
    PROGRAMS_PER_MULTIPROCESSOR,
    DeviceSize,
    upload,
)
from gradwatch._statistics.triton.reduce_kernel import TILE_BYTES
from gradwatch._statistics.triton.statistics import is_plain_dense, on

_lock: Final = threading.Lock()
_refused: Final[dict[tuple[torch.device, torch.dtype], str]] = {}


def warm_up(device: torch.device, dtypes: Collection[torch.dtype]) -> str:
    """Compile and load the kernels for dtypes of which that was not done yet, launched on nothing.

    Returns:
        Why the norm of a tensor of one of them is left to another path, empty if none is.
    """
    own = [dtype for dtype in dtypes if dtype in FORMATS]
    with _lock:
        for dtype in own:
            if is_unknown(device, dtype):
                _try(device, dtype)
    return next(filter(None, (_refused.get((device, dtype)) for dtype in own)), "")


def _try(device: torch.device, dtype: torch.dtype) -> None:
    try:
        nothing = Parts([1, 1], device, size_of(device))
        nothing.measure(0, torch.empty(0, dtype=dtype, device=device))
        nothing.keep_larger(0, 1)
        nothing.combine()
        _refused[device, dtype] = ""
    except Exception as error:  # noqa: BLE001 - of Triton, of a compiler, of the driver
        refuse(device, dtype, error)


def refuse(device: torch.device, dtype: torch.dtype, error: Exception) -> None:
    """Leave tensors of a dtype on a device to another path from now on, unless that may pass."""
    if "out of memory" not in str(error):
        _refused[device, dtype] = f"triton: {error!r}"


def is_readable(tensor: Tensor) -> bool:
    """Tell whether the kernel may be given this tensor: nothing is compiled for it."""
    return _refused.get((tensor.device, tensor.dtype), "-") == "" and is_plain_dense(tensor)


def is_unknown(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether it was not tried yet if the kernel runs there for a dtype."""
    return dtype in FORMATS and (device, dtype) not in _refused


@functools.cache
def size_of(device: torch.device) -> DeviceSize:
    return DeviceSize.of(device)


def num_programs(num_bytes: int, size: DeviceSize) -> int:
    """Return how many programs a device should share a tensor of so many bytes between.

    Args:
        num_bytes: 0 for a tensor of which nothing is known.
        size: Of the device.
    """
    if not num_bytes:
        return size.multiprocessors
    tiles = -(-num_bytes // TILE_BYTES)
    # One each first: a single launch has the device to itself.
    wanted = max(size.multiprocessors, tiles // MIN_TILES)
    return min(tiles, wanted, PROGRAMS_PER_MULTIPROCESSOR * size.multiprocessors)


class Parts:
    """A place for each of some tensors, in which the norms of its parts lie on the device.

    Nothing here waits, and nothing is uploaded once it is made.

    Args:
        num_parts: Of each place: programs that a tensor in it is shared between, whatever it is.
        device: Where they are.
        size: Of the device.

    Attributes:
        num_parts: As given.
        norms: The norm of each place, (1,) float64 each, right after `combine`.
        memory: What has to be kept until work on it is done.
    """

    def __init__(self, num_parts: Iterable[int], device: torch.device, size: DeviceSize) -> None:
        self.num_parts = list(num_parts)
        self._device = device
        self._warp_size = size.warp
        begins = list(accumulate(self.num_parts, initial=0))
        (table,) = upload([begins], device)
        parts = torch.zeros(begins[-1], dtype=torch.float64, device=device)
        norms = torch.zeros(len(self.num_parts), dtype=torch.float64, device=device)
        self.norms = norms.split(1)
        self.memory = table, parts, norms
        self._parts = parts.data_ptr()
        self._own = [self._parts + 8 * begin for begin in begins]

    def measure(self, place: int, tensor: Tensor) -> None:
        """Enqueue the norm of a tensor on the current stream: one launch.

        Args:
            place: Where its parts are written.
            tensor: One that is readable.
        """
        with on(self._device):
            norm_parts[(self.num_parts[place],)](
                tensor.data_ptr(),
                tensor.numel(),
                self._own[place],
                FORMAT=FORMATS[tensor.dtype],
                num_warps=reduce_kernel.THREADS // self._warp_size,
            )

    def keep_larger(self, place: int, other: int) -> None:
        """Leave the larger of the norms of two places, which are of the same size, in the first."""
        with on(self._device):
            keep_larger[(1,)](
                self._own[place],
                self._own[other],
                self.num_parts[place],
                num_warps=norm_kernel.THREADS // self._warp_size,
            )

    def combine(self) -> None:
        """Enqueue the norms of all places on the current stream: one launch."""
        table, parts, norms = self.memory
        with on(self._device):
            combine_norms[(len(self.num_parts),)](
                parts.data_ptr(),
                table.data_ptr(),
                norms.data_ptr(),
                num_warps=norm_kernel.THREADS // self._warp_size,
            )
