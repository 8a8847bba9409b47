"""The processes of `client`: one takes the time of all variants in turn, one the peak of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.client_cases import Case, tiny
from benchmarks.client_peers import COLLECT, HAND_OUT, VARIANTS, WANDB, check, ready
from benchmarks.harness import Pipe

SLOW: Final = (HAND_OUT, WANDB)
BUSY: Final = (COLLECT, WANDB)
"""They work on, in threads and processes of their own, after the call has returned."""

SETTLE_S: Final = 0.3

STATUS: Final = Path("/proc/self/status")
CLEAR_REFS: Final = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Timing:
    """A case to time, the slow variants in the first `slow_rounds` only."""

    case: Case
    rounds: int
    slow_rounds: int


@dataclass(frozen=True, slots=True)
class Peak:
    """A case and a variant to take the peak memory of."""

    case: Case
    variant: str


def take_times(job: Timing, pipe: Pipe) -> None:
    """Send milliseconds of each round by variant; they take turns, after a round to warm up."""
    with ready(job.case.model(), list(VARIANTS)) as calls:
        check({name: call() for name, call in calls.items()}, len(job.case.shapes))
        times: dict[str, list[float]] = {name: [] for name in calls}
        names = list(calls)
        for turn in range(job.rounds):
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                if name not in SLOW:
                    times[name].append(_milliseconds(calls[name], job.case.calls))
                elif turn < job.slow_rounds:
                    times[name].append(_milliseconds(calls[name], 1))
                if name in BUSY:
                    time.sleep(SETTLE_S)
    pipe.send(times)  # the last thing: the parent ends us then


def _milliseconds(call: Callable[[], Any], number: int) -> float:
    began = time.perf_counter()
    for _ in range(number):
        call()
    return 1e3 * (time.perf_counter() - began) / number


def take_peak(job: Peak, pipe: Pipe) -> None:
    """Send by how much one call raises the resident memory at its highest, in 10^6 bytes.

    A call with a few small gradients comes before, so that code and thread pools are loaded. It is
    None where the kernel does not tell.
    """
    with ready(tiny(job.case).model(), [job.variant]) as calls:
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
