"""From the device to the host without waiting: pinned memory and an event that is polled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwatch._statistics.devices import pack


class Readback:
    """Numbers of one device on their way. Made in the training thread, read in another."""

    __slots__ = ("_event", "_host")

    def __init__(self, values: Sequence[Tensor]) -> None:
        """Pack the numbers into one tensor, and start its copy.

        Args:
            values: 0-d and 1-d, of one device, written by work already enqueued on the current
                stream; they may be changed afterwards.
        """
        packed = pack(values)
        self._event: torch.cuda.Event | None = None
        if packed.device.type == "cpu":
            self._host = packed
            return
        # The pinned block comes from torch's caching allocator, which gives it to nobody else
        # before the copy is done, even if this object is dropped first.
        self._host = torch.empty(packed.shape, dtype=packed.dtype, device="cpu", pin_memory=True)
        self._host.copy_(packed, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(packed.device))

    def ready(self) -> bool:
        """Tell whether the numbers have arrived; never waits."""
        return self._event is None or self._event.query()

    def read(self) -> list[float]:
        """Return the numbers of all values, one after the other; only once `ready`."""
        numbers: list[float] = self._host.tolist()
        return numbers
