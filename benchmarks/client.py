"""Cost of the client's numbers, beside one read of the gradients and what people use today.

One process for each case times all variants in turn, in an order that rotates from round to round;
each is compared with the floor of its own round. Peaks of memory are of fresh processes. Then tiny
models, a training with DDP, with and without, and looks at the weights. What it costs on a GPU
`gpu_session` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import torch

from benchmarks import client_ddp
from benchmarks.client_cases import Case, large, small, tiny
from benchmarks.client_peers import COLLECT, FLOOR, FUSED, HAND_OUT, OWN, PEERS, WANDB
from benchmarks.client_processes import Peak, Timing, take_peak, take_times, take_tiny_times
from benchmarks.harness import workers
from benchmarks.report import show, with_range
from benchmarks.step import time_looks

SHOWN: Final = (FLOOR, *OWN, *PEERS)
SLOW_ROUNDS: Final = 3


def run(*, quick: bool = False, rounds: int = 11) -> None:
    """Measure and print."""
    rounds = 1 if quick else rounds
    rows: list[list[str]] = []
    for case in (large(quick=quick), small(quick=quick)):
        rows += _rows(case, rounds)
    show(
        "client",
        ("what", "ms", "x floor", "wandb x", "peak MB"),
        rows,
        f"Medians of {rounds} rounds (range), on {torch.get_num_threads()} threads of the CPU. "
        "x floor: to one read of the gradients in the same round. wandb x: how many times as long "
        "wandb.watch takes. peak: what one call adds to the resident memory at its highest, in a "
        "fresh process.",
        "collect(): the whole call in the training loop, with nobody listening. clip_grad_norm_: "
        "its limit is out of reach, and it still multiplies each gradient, by 1. Three masks: "
        "(g == 0), isnan and isinf, one sum each.",
        "wandb.watch: offline, log_freq=1, and the log() that commits the step; the time of a "
        "backward pass that only hands out these gradients, less that of the same pass without "
        f"it; {min(rounds, SLOW_ROUNDS)} rounds. What its service process does is not in it.",
    )
    show(
        "client, tiny models",
        ("gradients", "fused norm ms", "collect() ms", "ratio"),
        [_tiny_row(case, rounds) for case in tiny(quick=quick)],
        "Medians (range) over the rounds of the p50 of each, on 1 thread. fused norm: "
        "torch._foreach_norm in float64 of the same gradients.",
    )
    client_ddp.run(quick=quick)
    time_looks(*((8, 1) if quick else ()))


def _rows(case: Case, rounds: int) -> list[list[str]]:
    job = Timing(case, (*SHOWN, HAND_OUT), rounds, min(rounds, SLOW_ROUNDS))
    with workers(take_times, [job]) as (worker,):
        times: dict[str, list[float]] = worker.receive()
    times[WANDB] = [a - b for a, b in zip(times[WANDB], times[HAND_OUT], strict=True)]
    rows = [[case.title, "", "", "", ""]]
    for name in SHOWN:
        own = times[name]
        against_floor = [a / b for a, b in zip(own, times[FLOOR], strict=False)]
        wandb = f"{median(times[WANDB]) / median(own):.0f}" if name in OWN else ""
        peak = _peak(case, name) if name in OWN else ""
        rows.append([f"  {name}", _three_digits(own), _three_digits(against_floor), wandb, peak])
    return rows


def _tiny_row(case: Case, rounds: int) -> list[str]:
    with workers(take_tiny_times, [Timing(case, (FUSED, COLLECT), rounds, rounds)]) as (worker,):
        fused, ours = worker.receive().values()
    against_fused = [own / base for own, base in zip(ours, fused, strict=True)]
    return [case.title, *(with_range(own, ".2f") for own in (fused, ours, against_fused))]


def _three_digits(values: Sequence[float]) -> str:
    middle = median(values)
    return with_range(values, ".2f" if middle < 10 else ".1f" if middle < 100 else ".0f")


def _peak(case: Case, name: str) -> str:
    with workers(take_peak, [Peak(case, name)]) as (worker,):
        peak_mb: float | None = worker.receive()
    return "" if peak_mb is None else f"{peak_mb:.1f}"
