"""Addresses of the gradients, on their way to the device: uploaded only if they have changed."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

MAX_UPLOADS: Final = 8
"""Uploads from one block at most, after which its event is recorded: once for all of them."""

BLOCK_BYTES: Final = 1 << 16
"""Above this a block has room for two uploads only."""

MAX_BYTES: Final = 1 << 20
"""Pinned memory for the addresses of one set of tensors."""

MIN_UPLOADS: Final = 4
"""Copies that may be on their way in any case, however large they are."""


class BehindError(RuntimeError):
    """The device is so far behind that there is no memory from which addresses could be copied."""


class Addresses:
    """Addresses of a set of tensors, kept on the device; called by one thread at a time.

    A copy runs when the device comes to it, so each has pinned memory of its own until then: a
    block of it takes several copies, one after the other, and its event stands behind the last. The
    oldest block is written again once its event says that its copies are done, otherwise there is
    one more, as long as there is memory for it.

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
        self._per_block = _uploads_per_block(number)
        self._max_blocks = max(
            -(-MIN_UPLOADS // self._per_block), MAX_BYTES // _pinned_bytes(self._per_block * number)
        )
        self._blocks: deque[_Block] = deque()  # the one in use is the last, before it the newest

    def update(self, addresses: Sequence[int]) -> None:
        """Enqueue their upload on the current stream, if they are others than before; never wait.

        Raises:
            BehindError: If all the memory for it is still to be copied from. What is on the device
                stays as it is.
        """
        if addresses is self.latest or addresses == self.latest:
            return
        if not self._blocks or self._blocks[-1].is_full:
            self._change_block()
        # If the copy fails, what is on the device is not known.
        self.latest = []
        self._blocks[-1].send(addresses, self.on_device)
        self.latest = addresses

    def _change_block(self) -> None:
        if self._blocks and self._blocks[0].is_free():
            self._blocks.rotate(-1)
        elif len(self._blocks) < self._max_blocks:
            self._blocks.append(_Block(self.on_device, self._per_block))
        else:
            msg = (
                f"the device is {len(self._blocks) * self._per_block} collections behind, and no "
                f"more memory is pinned for the addresses of {len(self.on_device)} gradients"
            )
            raise BehindError(msg)
        self._blocks[-1].num_sent = 0


def _uploads_per_block(number: int) -> int:
    return min(max(BLOCK_BYTES // max(8 * number, 1), 2), MAX_UPLOADS)


def _pinned_bytes(number: int) -> int:
    """Return what torch pins for so many addresses: it rounds up to powers of two."""
    return 1 << max(8 * number - 1, 0).bit_length()


class _Block:
    """Pinned memory from which addresses are copied, and the event behind its last copy."""

    __slots__ = ("_event", "_hosts", "_numbers", "num_sent")

    def __init__(self, on_device: Tensor, count: int) -> None:
        is_cuda = on_device.is_cuda
        host = torch.empty(
            (count, len(on_device)), dtype=torch.int64, device="cpu", pin_memory=is_cuda
        )
        self._hosts = host.unbind()
        # Written through ctypes, which takes a list at once, without torch's checks of each number.
        kind: Any = ctypes.c_int64 * len(on_device)
        self._numbers = [kind.from_address(each.data_ptr()) for each in self._hosts]
        self._event = torch.cuda.Event() if is_cuda else None
        self.num_sent = 0

    @property
    def is_full(self) -> bool:
        """State: true if its memory was sent to the last, and its event recorded."""
        return self.num_sent == len(self._hosts)

    def is_free(self) -> bool:
        """Tell whether nothing will be read from it any more; only once `is_full`."""
        return self._event is None or self._event.query()

    def send(self, addresses: Sequence[int], on_device: Tensor) -> None:
        """Enqueue the copy of addresses from the next part of it."""
        self._numbers[self.num_sent][:] = addresses
        on_device.copy_(self._hosts[self.num_sent], non_blocking=True)
        self.num_sent += 1
        if self.is_full and self._event is not None:
            self._event.record()
