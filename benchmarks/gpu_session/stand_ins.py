"""What takes the place of `torch.cuda` in a rehearsal, so that the stages' own code runs."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import Any

import torch


def install() -> None:
    """Put it there, for this process."""
    functions: dict[str, Any] = {
        "synchronize": lambda: None,
        "_sleep": lambda _cycles: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "set_sync_debug_mode": lambda _mode: None,
        "memory_allocated": lambda: 0,
        "max_memory_allocated": lambda: 0,
        "device_count": lambda: 1,
        "mem_get_info": lambda: (1 << 62, 1 << 62),
        "memory_stats": lambda: {"allocation.all.allocated": 0},
        "host_memory_stats": lambda: {"allocated_bytes.current": 0},
        "get_device_properties": lambda _number: _PROPERTIES,
        "current_stream": Stream,
        "stream": lambda _stream: contextlib.nullcontext(),
        "Event": Event,
        "Stream": Stream,
    }
    for name, function in functions.items():
        setattr(torch.cuda, name, function)


_PROPERTIES = SimpleNamespace(name="the CPU", total_memory=0, multi_processor_count=0)


class Event:
    """Its device is always behind, until it is waited for."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self._is_timed = enable_timing
        self._recorded_s = 0.0
        self._is_done = True

    def record(self) -> None:
        self._recorded_s, self._is_done = time.perf_counter(), False

    def query(self) -> bool:
        return self._is_done

    def synchronize(self) -> None:
        self._is_done = True

    def elapsed_time(self, end: Event) -> float:
        assert self._is_timed
        return max(1e-6, 1e3 * (end._recorded_s - self._recorded_s))


class Stream:
    """All work is done at once, in the order in which it comes."""

    def wait_stream(self, stream: Stream) -> None:
        """Wait for nothing."""
