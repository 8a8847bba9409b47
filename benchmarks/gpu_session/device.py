"""The GPU, or in a rehearsal the CPU in its place: time, captures, streams."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

SHORTEST_SLEEP_MS: Final = 2.0
LONGEST_SLEEP_MS: Final = 256.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one call.

    Args:
        device_ms: From the begin of its work on the device to the end of it.
        host_us: Until it returned.
        is_apart: Whether it returned before its work began: only then is the one without the other.
    """

    device_ms: float
    host_us: float
    is_apart: bool


class Device:
    """One GPU; in a rehearsal the CPU, with stand-ins for what `torch.cuda` has."""

    def __init__(self, *, is_rehearsal: bool) -> None:
        self.is_rehearsal = is_rehearsal
        self.name = "cpu" if is_rehearsal else "cuda"
        self._sleep_ms = SHORTEST_SLEEP_MS
        self._is_in_vain = False
        self._cycles_per_ms = 0.0
        self._flush: Tensor | None = None
        if is_rehearsal:
            torch.set_num_threads(1)
            _replace_cuda()

    def choose(self, real: T, rehearsed: T) -> T:
        """Return the first on a GPU, the second in a rehearsal."""
        return rehearsed if self.is_rehearsal else real

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def sleep(self, milliseconds: float) -> None:
        """Keep the current stream busy for about so long."""
        if not self._cycles_per_ms:
            cycles = 20_000_000
            torch.cuda._sleep(1000)  # loads the kernel
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
            self._cycles_per_ms = cycles / begin.elapsed_time(end)
        torch.cuda._sleep(int(milliseconds * self._cycles_per_ms))

    def flush_cache(self) -> None:
        """Read as much as the caches hold several times over: nothing else is left in them."""
        if self._flush is None:
            self._flush = torch.zeros(self.choose(64 << 20, 1), device=self.name)
        self._flush.sum()

    def times(
        self,
        calls: Sequence[Callable[[], Any]],
        rounds: int,
        before: Callable[[int], object] = lambda _turn: None,
    ) -> list[Cost]:
        """Measure so many calls with cold caches, these in turn, after each was made once.

        The device sleeps until a call has returned. Where it cannot, because the call waits for it
        or fills its queue, that is found out once: the others do not sleep that long.

        Args:
            calls: What is measured.
            rounds: How many of them.
            before: Called with the number of the round before each call, and not measured.
        """
        for turn, call in enumerate(calls):
            before(turn)
            call()
        self._is_in_vain = False
        costs = []
        for turn in range(rounds):
            before(turn)
            costs.append(self._time(calls[turn % len(calls)]))
        return costs

    def _time(self, call: Callable[[], Any]) -> Cost:
        while True:
            cost = self._time_behind_sleep(call)
            if cost.is_apart:
                self._sleep_ms = max(SHORTEST_SLEEP_MS, 3e-3 * cost.host_us)
                return cost
            if self._is_in_vain or self._sleep_ms >= LONGEST_SLEEP_MS:
                self._is_in_vain, self._sleep_ms = True, SHORTEST_SLEEP_MS
                return cost
            self._sleep_ms = min(2 * self._sleep_ms, LONGEST_SLEEP_MS)

    def _time_behind_sleep(self, call: Callable[[], Any]) -> Cost:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()  # the first record of an event makes it
        end.record()
        self.synchronize()
        self.flush_cache()
        self.sleep(self._sleep_ms)
        begin.record()
        began = time.perf_counter()
        call()
        host_us = 1e6 * (time.perf_counter() - began)
        is_apart = not begin.query()
        end.record()
        end.synchronize()
        return Cost(begin.elapsed_time(end), host_us, is_apart)

    @contextlib.contextmanager
    def side_stream(self) -> Iterator[None]:
        """Run the block on a stream of its own, behind what was enqueued before it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream().wait_stream(stream)

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info()[0]


def _replace_cuda() -> None:
    """Put stand-ins in place of `torch.cuda`, for this process."""
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
