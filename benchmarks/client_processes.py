"""The processes of `client`: one takes the time of all variants in turn, one the peak of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import nn

from benchmarks.client_cases import Case, warming
from benchmarks.client_peers import COLLECT, HAND_OUT, WANDB, check, ready
from benchmarks.harness import Pipe, turns

SLOW: Final = (HAND_OUT, WANDB)
BUSY: Final = (COLLECT, WANDB)
"""Peers that work on in threads and processes of their own after the call."""

SETTLE_S: Final = 0.3
STEP_WIDTH: Final = 160
STEP_US_PER_TENSOR: Final = 10

STATUS: Final = Path("/proc/self/status")
CLEAR_REFS: Final = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Timing:
    """A case to time by all variants, the slow ones in the first `slow_rounds` only."""

    case: Case
    variants: tuple[str, ...]
    rounds: int
    slow_rounds: int


@dataclass(frozen=True, slots=True)
class Peak:
    """A case and a variant to take the peak memory of."""

    case: Case
    variant: str


def take_times(job: Timing, pipe: Pipe) -> None:
    """Send milliseconds of each round by variant; they take turns, after a round to warm up."""
    with ready(job.case.model(), job.variants) as calls:
        check({name: call() for name, call in calls.items()}, len(job.case.shapes))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for name in turns(list(calls), job.rounds):
            if name not in SLOW:
                times[name].append(_p50_ms(calls[name], job.case.calls, lambda: None))
            elif len(times[name]) < job.slow_rounds:
                times[name].append(_p50_ms(calls[name], 1, lambda: None))
            if name in BUSY:
                time.sleep(SETTLE_S)
    pipe.send(times)  # the last thing: the parent ends us then


def take_tiny_times(job: Timing, pipe: Pipe) -> None:
    """Send the same of a tiny model, on one thread, with the work of a step between the calls.

    The background thread has time to send then, and the caches are not left as the call wants them.
    """
    torch.set_num_threads(1)
    step, batch = nn.Linear(STEP_WIDTH, STEP_WIDTH), torch.ones(STEP_WIDTH, STEP_WIDTH)

    def train() -> None:
        until = time.perf_counter() + 1e-6 * STEP_US_PER_TENSOR * (100 + len(job.case.shapes))
        while time.perf_counter() < until:
            step(batch)

    with ready(job.case.model(), job.variants) as calls:
        times: dict[str, list[float]] = {name: [] for name in calls}
        for name in turns(list(calls), job.rounds + 1):
            times[name].append(_p50_ms(calls[name], job.case.calls, train))
    pipe.send({name: each[1:] for name, each in times.items()})  # the first warms up


def _p50_ms(call: Callable[[], Any], number: int, prepare: Callable[[], None]) -> float:
    times = []
    for _ in range(number):
        prepare()
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    return median(times)


def take_peak(job: Peak, pipe: Pipe) -> None:
    """Send by how much one call raises the resident memory at its highest, in 10^6 bytes.

    A call with a few small gradients comes before, so that code and thread pools are loaded. It is
    None where the kernel does not tell.
    """
    with ready(warming().model(), [job.variant]) as calls:
        calls[job.variant]()
    with ready(job.case.model(), [job.variant]) as calls:
        time.sleep(SETTLE_S)
        peak_mb = _peak_mb(calls[job.variant])
    pipe.send(peak_mb)


def _peak_mb(call: Callable[[], Any]) -> float | None:
    try:
        CLEAR_REFS.write_text("5")  # resets the peak: proc(5)
    except OSError:
        return None
    before = _status_mb("VmRSS:")
    call()
    return _status_mb("VmHWM:") - before


def _status_mb(key: str) -> float:
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024 / 1e6
