"""Norms that hooks measure on a GPU, in parts that are put together once, where they are taken.

Each launch leaves the norms of a tensor's parts in a place of its own. What was compiled, and how
many parts a place has, is settled where there is time: at the start, and where norms are taken.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gradwatch._statistics.cuda import is_public_forced
from gradwatch._statistics.slots import Slot, Slots


@dataclass(frozen=True, slots=True)
class Expected:
    """Tensors that are going to be measured, as far as can be told; all of it may be otherwise.

    Args:
        num_bytes: How large it is, 0 if that is not known.
    """

    device: torch.device
    dtypes: Collection[torch.dtype] = ()
    num_bytes: int = 0


class NormSlots(Slots):
    """The norm of one tensor for each of several layers or blocks."""

    def __init__(self, expected: Iterable[Expected]) -> None:
        known = list(expected)
        super().__init__(each.device for each in known)
        self._num_bytes = [each.num_bytes for each in known]  # the largest seen
        self._parts: dict[torch.device, Any] = {}
        self._unknown: dict[torch.device, set[torch.dtype]] = {}  # not compiled for, so far
        self._is_settled = False
        for each in known:
            if each.dtypes and is_for_kernel(each.device):
                self._unknown.setdefault(each.device, set()).update(each.dtypes)
        self._settle()

    def measure(self, index: int, tensor: Tensor) -> Slot | None:
        """Enqueue a norm with one launch; None if that cannot be, or not yet.

        Args:
            tensor: As `dense` returns it.
        """
        device = tensor.device
        if not is_for_kernel(device) or (norms := _norms()) is None:
            return None
        self._expect(index, tensor)
        parts = self._parts.get(device)
        place = self._spare_place(index)
        if parts is None or place >= len(parts.norms):
            return None
        if not norms.is_readable(tensor):
            if norms.is_unknown(device, tensor.dtype):
                self._unknown.setdefault(device, set()).add(tensor.dtype)
                self._is_settled = False
            return None
        try:
            parts.measure(place, tensor)
        except Exception as error:
            norms.refuse(device, tensor.dtype, error)
            raise
        return Slot(place, parts.norms[place], parts)

    def keep_larger(self, index: int, slot: Slot) -> None:
        """Keep the larger of a norm and of that which is kept already; NaN is larger than all."""
        known = self._kept.get(index)
        if known is None or (known.parts is None and slot.parts is None):
            self.keep(index, slot, torch.maximum)
        elif known.parts is slot.parts:
            slot.parts.keep_larger(known.place, slot.place)
        elif known.number.device != slot.number.device:
            self.keep(index, slot)
        else:
            _combine((known, slot))
            number = self._number(known.place, slot.number.device)
            torch.maximum(known.number, slot.number, out=number)
            self.keep(index, Slot(known.place, number))

    def kept(self) -> dict[int, Tensor]:
        """Return the numbers that are kept, (1,) each."""
        _combine(self._kept.values())
        return super().kept()

    def clear(self) -> None:
        """Forget all numbers."""
        super().clear()
        self._settle()

    def take(self, indices: Iterable[int]) -> dict[int, Tensor]:
        """Return the numbers of some, (1,) each, where they have one, and forget these.

        See `Slots.take`.
        """
        mine = [index for index in indices if index in self._kept]
        for parts in _combine(self._kept[index] for index in mine):
            self._outgrown += parts.memory
        self._settle()
        return super().take(mine)

    def _expect(self, index: int, tensor: Tensor) -> None:
        """Note how large a tensor is, and where, if there is no room for as much yet."""
        if index >= len(self._num_bytes):
            self._num_bytes += [0] * (index + 1 - len(self._num_bytes))
            self._is_settled = False
        num_bytes = tensor.numel() * tensor.dtype.itemsize
        if num_bytes > self._num_bytes[index]:
            self._num_bytes[index] = num_bytes
            self._is_settled = False
        if tensor.device not in self._parts:
            self._unknown.setdefault(tensor.device, set()).add(tensor.dtype)
            self._is_settled = False

    def _settle(self) -> None:
        """Compile and make room for what has been seen since the last time."""
        if self._is_settled:
            return
        self._is_settled = True
        if not (self._unknown or self._parts) or (norms := _norms()) is None:
            return
        unknown, self._unknown = self._unknown, {}
        for device, dtypes in unknown.items():
            norms.warm_up(device, dtypes)
        for device in {*unknown, *self._parts}:
            size = norms.size_of(device)
            wanted = [norms.num_programs(each, size) for each in self._num_bytes for _ in range(2)]
            known = self._parts.get(device)
            if known is None or known.num_parts != wanted:
                self._outgrown += () if known is None else known.memory
                self._parts[device] = norms.Parts(wanted, device, size)


def is_for_kernel(device: torch.device) -> bool:
    return device.type == "cuda" and not torch.compiler.is_compiling() and not is_public_forced()


def _combine(slots: Iterable[Slot]) -> list[Any]:
    """Enqueue what puts their numbers together; return what they are put together from."""
    found = {id(slot.parts): slot.parts for slot in slots if slot.parts is not None}
    for parts in found.values():
        parts.combine()
    return list(found.values())


@functools.cache
def _norms() -> ModuleType | None:
    # Triton takes a third of a second to import, and is not everywhere.
    try:
        return importlib.import_module("gradwatch._statistics.triton.norms")
    except Exception:  # noqa: BLE001 - the path of `statistics` tells why
        return None
