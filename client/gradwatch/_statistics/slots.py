"""Numbers that hooks measure, in memory that is kept as long as the hooks are.

A hook runs on the stream of its node, and what it has measured is read on the stream of the
training thread. Were it a tensor made in the hook, its memory would be given out again on the
hook's stream as soon as the training thread dropped it, before the work that reads it has run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Slot(NamedTuple):
    """A place for a number.

    Args:
        place: Which it is.
        number: (1,) float64, a view of the memory there.
        parts: From what the number has yet to be put together, None if it is written at once.
    """

    place: int
    number: Tensor
    parts: Any = None


class Slots:
    """One number for each of several layers or blocks. What is not kept is written over.

    Each has two places, so that another pass can be measured beside the number that is kept.

    Args:
        devices: For each the device that its number lies on, as far as can be told.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        known = list(devices)
        self._count = len(known)
        self._buffers = {
            device: self._new_buffer(device) for device in set(known) if device.type == "cuda"
        }
        self._outgrown: list[Tensor] = []
        self._kept: dict[int, Slot] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, index: object) -> bool:
        return index in self._kept

    def spare(self, index: int, device: torch.device) -> Slot:
        """Return a place for a number of one of them, other than where its kept number is."""
        place = self._spare_place(index)
        return Slot(place, self._number(place, device))

    def _spare_place(self, index: int) -> int:
        kept = self._kept.get(index)
        return 2 * index + (kept is not None and kept.place == 2 * index)

    def _number(self, place: int, device: torch.device) -> Tensor:
        if place >= 2 * self._count:  # more have come since: room for as many again
            self._count = place + 2
        buffer = self._buffers.get(device)
        if buffer is None or len(buffer) <= place:
            self._outgrown += [] if buffer is None else [buffer]
            buffer = self._buffers[device] = self._new_buffer(device)
        return buffer.narrow(0, place, 1)

    def keep(self, index: int, slot: Slot, add: Callable[..., Tensor] | None = None) -> None:
        """Keep what was written into a place.

        Args:
            slot: From `spare`.
            add: Function of two tensors and `out` that puts the number that is kept already
                together with this one; None drops the former.
        """
        known = self._kept.get(index) if add is not None else None
        if add is None or known is None or known.number.device != slot.number.device:
            self._kept[index] = slot
        else:
            add(known.number, slot.number, out=known.number)

    def kept(self) -> dict[int, Tensor]:
        """Return the numbers that are kept, (1,) each."""
        return {index: slot.number for index, slot in self._kept.items()}

    def drop(self, index: int) -> None:
        self._kept.pop(index, None)

    def clear(self) -> None:
        self._kept.clear()

    def take(self, indices: Iterable[int]) -> dict[int, Tensor]:
        """Return the numbers of some, (1,) each, where they have one, and forget these.

        They are to be read by work that is enqueued now, on the current stream: the next pass
        writes over them.
        """
        taken = {index: self._kept.pop(index).number for index in indices if index in self._kept}
        for buffer in (*self._buffers.values(), *self._outgrown):
            if buffer.is_cuda:
                # Once a buffer is dropped its memory is given out only after that work.
                buffer.record_stream(torch.cuda.current_stream(buffer.device))
        self._outgrown.clear()
        return taken

    def _new_buffer(self, device: torch.device) -> Tensor:
        return torch.zeros(2 * self._count, dtype=torch.float64, device=device)
