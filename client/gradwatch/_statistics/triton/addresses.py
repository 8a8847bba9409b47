"""Where the gradients lie, on their way to the device: uploaded only if it has changed."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

MAX_BYTES: Final = 1 << 20
"""Pinned memory for the addresses of one set of tensors."""

MIN_BLOCKS: Final = 4
"""Copies that may be on their way in any case, however large they are."""


class BehindError(RuntimeError):
    """The device is so far behind that there is no memory from which addresses could be copied."""


class Addresses:
    """Addresses of a set of tensors, kept on the device; called by one thread at a time.

    The copy runs when the device comes to it, so each has a pinned block of its own until then: the
    oldest block is written again once its event says that its copy is done, otherwise there is one
    more, as long as there is memory for it.

    Args:
        number: Of tensors.
        device: Where they are needed.

    Attributes:
        on_device: (number,) int64, right for work that is enqueued after `update`.
        latest: The addresses that are there.
    """

    def __init__(self, number: int, device: torch.device) -> None:
        self.on_device = torch.zeros(number, dtype=torch.int64, device=device)
        self.latest: Sequence[int] = []
        self._blocks: deque[_Block] = deque()
        self._max_blocks = max(MIN_BLOCKS, MAX_BYTES // _pinned_bytes(number))

    def update(self, addresses: Sequence[int]) -> None:
        """Enqueue their upload on the current stream, if they are others than before; never wait.

        Raises:
            BehindError: If all the memory for it is still to be copied from. What is on the device
                stays as it is.
        """
        if addresses == self.latest:
            return
        if not self._blocks or not self._blocks[0].is_free():
            if len(self._blocks) >= self._max_blocks:
                msg = (
                    f"the device is {len(self._blocks)} collections behind, and no more memory is "
                    f"pinned for the addresses of {len(self.on_device)} gradients"
                )
                raise BehindError(msg)
            self._blocks.appendleft(_Block(self.on_device))
        # If the copy fails, what is on the device is not known.
        self.latest = []
        self._blocks[0].send(addresses, self.on_device)
        self._blocks.rotate(-1)
        self.latest = addresses


def _pinned_bytes(number: int) -> int:
    """Return what torch pins for so many addresses: it rounds up to powers of two."""
    return 1 << max(8 * number - 1, 0).bit_length()


class _Block:
    """Pinned memory from which addresses are copied, and the event behind its last copy."""

    __slots__ = ("_event", "_host", "_numbers")

    def __init__(self, on_device: Tensor) -> None:
        is_cuda = on_device.is_cuda
        self._host = torch.empty(
            on_device.shape, dtype=torch.int64, device="cpu", pin_memory=is_cuda
        )
        # Written through ctypes, which takes a list at once, without torch's checks of each number.
        kind: Any = ctypes.c_int64 * len(self._host)
        self._numbers = kind.from_address(self._host.data_ptr())
        self._event = torch.cuda.Event() if is_cuda else None

    def is_free(self) -> bool:
        return self._event is None or self._event.query()

    def send(self, addresses: Sequence[int], on_device: Tensor) -> None:
        self._numbers[:] = addresses
        on_device.copy_(self._host, non_blocking=True)
        if self._event is not None:
            self._event.record()
