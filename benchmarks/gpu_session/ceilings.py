"""Stage 0: what this is, and how fast its memory is copied and read."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from shutil import which
from statistics import median
from typing import Any, Final

import torch

from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.rows import NOT_THERE, Rows

ROUNDS: Final = 20
TOOLS: Final = ("compute-sanitizer", "nvidia-smi")
PACKAGES: Final = ("triton", "pytest", "hypothesis", "pytest-timeout")


def run(device: Device, rows: Rows) -> None:
    """Write versions, tools and ceilings."""
    rows.add("Python, torch", note=f"{platform.python_version()}, {torch.__version__}")
    own = torch.cuda.get_device_properties(0)
    size = f"{own.total_memory / 1e9:.0f} GB, {own.multi_processor_count} multiprocessors"
    runtime = torch.version.hip or torch.version.cuda
    rows.add("device", note=f"{own.name}, {size}, CUDA {runtime}")
    rows.add("devices", [torch.cuda.device_count()], note="more than one is not looked at")
    for tool in TOOLS:
        rows.add(tool, note=which(tool) or NOT_THERE)
    for package in PACKAGES:
        rows.add(package, note=_version(package))
    _measure(device, rows)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_THERE


def _measure(device: Device, rows: Rows) -> None:
    size = device.choose(4 << 30, 1 << 16)
    with rows.attempt("copy"):
        rows.add("copy: bytes read and written", _copy(device, size), "GB/s")
    for dtype in (torch.float32, torch.bfloat16):
        with rows.attempt(f"sum of {dtype}"):
            rows.add(f"sum of {dtype}: bytes read", _sum(device, dtype, size), "GB/s")
    nothing = _milliseconds(device, lambda: None)
    rows.add("nothing, between two events", [median(nothing)], "ms")


def _copy(device: Device, size: int) -> list[float]:
    source = torch.zeros(size, dtype=torch.uint8, device=device.name)
    target = torch.empty_like(source)
    return [2 * size / ms / 1e6 for ms in _milliseconds(device, lambda: target.copy_(source))]


def _sum(device: Device, dtype: torch.dtype, size: int) -> list[float]:
    numbers = torch.ones(size // dtype.itemsize, dtype=dtype, device=device.name)
    return [size / ms / 1e6 for ms in _milliseconds(device, numbers.sum)]


def _milliseconds(device: Device, call: Callable[[], Any]) -> list[float]:
    return [cost.device_ms for cost in device.times([call], device.choose(ROUNDS, 2))]
