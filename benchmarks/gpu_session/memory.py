"""Memory of the device and pinned memory over 1,000 steps, and in one collection."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.gpu_session.aims import Aim
from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.rows import Rows
from benchmarks.gpu_session.training import WIDTH, loss_of, small_model, watching
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import MEASURED_COLUMNS

STEPS: Final = 1000
WARMUP_STEPS: Final = 100
LARGEST_TEMPORARY: Final = 16 << 20
"""Bytes; `docs/statistics.md` promises it."""


def run(device: Device, rows: Rows) -> None:
    """Train, then measure what one collection takes at its highest."""
    for settings in ({}, {"report_every": 10}, {"local": True}):
        name = "".join(f"{key}={value}" for key, value in settings.items()) or "collect()"
        with rows.attempt(name, Aim.MEMORY):
            _train(device, rows, name, settings)
    for name, make in PEAKS.items():
        with rows.attempt(name, Aim.MEMORY):
            _peak(rows, name, make(device))


def _train(device: Device, rows: Rows, name: str, settings: dict[str, Any]) -> None:
    model = small_model(device.name)
    batch = torch.ones(8, WIDTH, device=device.name)
    without = _Use(device, model, batch, lambda: None)
    without.steps(device.choose(WARMUP_STEPS, 2))
    plain = without.allocations(device.choose(WARMUP_STEPS, 2))
    with watching(model, **settings) as received:
        own = _Use(device, model, batch, received.watch.collect)
        own.steps(device.choose(WARMUP_STEPS, 2))
        before = own.now()
        each = own.allocations(device.choose(STEPS, 5))
        after = own.now()
    rows.add(f"{name}: allocations more", [each - plain], "a step")
    for what, value in after.items():
        if what in before:
            grown = value - before[what]
            judged = grown <= 0 if what != RESIDENT else None
            rows.add(f"{name}: growth of {what}", [grown], "bytes", passed=judged, aim=Aim.MEMORY)


RESIDENT: Final = "resident memory"


class _Use:
    """Steps, and the memory in use between them."""

    def __init__(
        self, device: Device, model: torch.nn.Module, batch: Tensor, collect: Callable[[], object]
    ) -> None:
        self._device = device
        self._model = model
        self._batch = batch
        self._collect = collect

    def steps(self, count: int) -> None:
        for number in range(count):
            self._model.zero_grad()
            loss_of(self._model, self._batch).backward()
            self._collect()
            if number % 50 == 49:
                self._device.synchronize()  # the sender has to keep up
        self._device.synchronize()

    def allocations(self, count: int) -> float:
        """Return how many allocations on the device a step makes."""
        before = self._allocated()
        self.steps(count)
        return (self._allocated() - before) / count

    def _allocated(self) -> float:
        return float(torch.cuda.memory_stats()["allocation.all.allocated"])

    def now(self) -> dict[str, float]:
        found = {RESIDENT: float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)}
        found["the device's peak"] = float(torch.cuda.max_memory_allocated())
        host = getattr(torch.cuda, "host_memory_stats", None)  # torch 2.6 and later
        if host is not None:
            known = host()
            for key in ("reserved_bytes.current", "allocated_bytes.current"):
                if key in known:
                    found["pinned memory"] = float(known[key])
        return found


def _peak(rows: Rows, name: str, gradients: Sequence[Tensor]) -> None:
    """Write what a measurement allocates at its highest, beside what is there."""
    statistics(gradients, MEASURED_COLUMNS)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    statistics(gradients, MEASURED_COLUMNS)
    torch.cuda.synchronize()
    peak = float(torch.cuda.max_memory_allocated() - before)
    rows.limit(f"{name}: peak", [peak], "bytes", LARGEST_TEMPORARY, Aim.MEMORY)


def _strided(device: Device) -> list[Tensor]:
    size = device.choose(8192, 64)
    return [torch.ones(size, size, device=device.name)[:, ::4]]


def _many_and_a_huge_one(device: Device) -> list[Tensor]:
    many, huge = device.choose((10_000, 525_000_000), (10, 1000))
    small = [torch.ones(64, device=device.name) for _ in range(many)]
    return [*small, torch.ones(huge, device=device.name)]


PEAKS: Final[dict[str, Callable[[Device], list[Tensor]]]] = {
    "a strided gradient of 67 MB": _strided,
    "10,000 beside one of 525 million": _many_and_a_huge_one,
}
