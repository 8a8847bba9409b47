"""In place of pinned memory: what is copied to it arrives later, in any order."""

from __future__ import annotations

import ctypes
import random
import threading
from typing import Any

import torch
from torch import Tensor

from gradwatch._recording import readback, step_sample
from gradwatch._recording.readback import Readback


class LateMemory:
    """Memory for numbers, (size,) float64 as the ring's `_memory` is."""

    def __init__(self, size: int) -> None:
        self._tensor = torch.zeros(size, dtype=torch.float64)
        words = (ctypes.c_uint64 * size).from_address(self._tensor.data_ptr())
        self._words = memoryview(words).cast("B").cast("Q")
        self._dice = random.Random(0)
        self._lock = threading.Lock()
        self.copies: list[list[tuple[int, int]]] = []  # of each: elements still to come

    def data_ptr(self) -> int:
        return self._tensor.data_ptr()

    def __getitem__(self, part: slice) -> _Target:
        return _Target(self, part.start)

    def enqueue(self, start: int, packed: Tensor) -> None:
        bits = packed.view(torch.int64).tolist()
        elements = [(start + place, each & (2**64 - 1)) for place, each in enumerate(bits)]
        self._dice.shuffle(elements)
        with self._lock:
            self.copies.append(elements)

    def deliver(self, count: int | None = None) -> None:
        """Let so many elements arrive, in the order of the copies; None: all."""
        while self.copies and (count is None or count > 0):
            with self._lock:
                elements = self.copies[0]
                place, bits = elements.pop()
                self._words[place] = bits
                if not elements:
                    self.copies.pop(0)
            count = None if count is None else count - 1


class _Target:
    def __init__(self, memory: LateMemory, start: int) -> None:
        self._memory, self._start = memory, start

    def copy_(self, packed: Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        self._memory.enqueue(self._start, packed)


def take_as_far(monkeypatch: Any) -> list[LateMemory]:
    """Treat the CPU as a device from which numbers are copied; return the memory of each ring."""
    made: list[LateMemory] = []

    def new(size: int) -> LateMemory:
        made.append(LateMemory(size))
        return made[-1]

    for module in (readback, step_sample):
        monkeypatch.setattr(module, "is_far", lambda _: True)
    monkeypatch.setattr(readback, "_idle", [])
    monkeypatch.setattr(readback, "_new_memory", new)
    monkeypatch.setattr(Readback, "_is_captured", lambda *_: False)
    return made
