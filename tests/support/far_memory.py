"""The CPU in place of a GPU: its numbers go through a ring, to which they come late."""

from __future__ import annotations

from typing import Any

from gradwatch._recording import readback, step_sample
from gradwatch._recording.readback import Readback
from tests.support.late_memory import LateMemory


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
