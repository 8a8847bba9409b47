"""What the client's numbers cost: beside one read of the gradients, and what people use today.

One process for each case times all variants in turn, in an order that rotates from round to round;
each is compared with the floor of its own round. Peaks of memory are of fresh processes. Then a
training with DDP, with and without. What it costs on a GPU `gpu_session` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import torch

from benchmarks import client_ddp, client_small
from benchmarks.client_cases import Case, cases
from benchmarks.client_peers import FLOOR, HAND_OUT, NORMS, OWN, SIX, VARIANTS, WANDB
from benchmarks.client_probe import Peak, Timing, take_peak, take_times
from benchmarks.harness import workers
from benchmarks.report import show, with_range

AIM_WANDB, AIM_MB = 20, 16
SHOWN: Final = tuple(name for name in VARIANTS if name != HAND_OUT)


def run(*, quick: bool = False, rounds: int = 11) -> None:
    """Measure and print."""
    rounds = 1 if quick else rounds
    rows: list[list[str]] = []
    large, small, half = cases(quick=quick)
    for case, aims, peaks in (
        (large, {NORMS: 1.5, SIX: 3.0}, OWN if quick else SHOWN),
        (small, {SIX: 4.0}, () if quick else OWN),
        (half, {}, () if quick else SHOWN),
    ):
        rows += _rows(case, rounds, aims, peaks)
    show(
        "client",
        ("what", "ms", "x floor", "aim", f"wandb x\naim {AIM_WANDB}", f"peak MB\naim {AIM_MB}"),
        rows,
        f"Medians of {rounds} rounds (range), on {torch.get_num_threads()} threads of the CPU. "
        "x floor: to one read of the gradients in the same round. wandb x: how many times as long "
        "wandb.watch takes. peak: what one call adds to the resident memory at its highest, in a "
        "fresh process; the aim is gradwatch's, whatever the size.",
        "collect(): the whole call in the training loop, with nobody listening. clip_grad_norm_: "
        "its limit is out of reach, and it still multiplies each gradient, by 1. Three masks: "
        "(g == 0), isnan and isinf, one sum each.",
        "wandb.watch: offline, log_freq=1, and the log() that commits the step; the time of a "
        "backward pass that only hands out these gradients, less that of the same pass without "
        f"it; {_slow_rounds(rounds)} rounds. What its service process does besides is not in it.",
    )
    client_small.run(quick=quick)
    client_ddp.run(quick=quick)


def _slow_rounds(rounds: int) -> int:
    return min(rounds, 3)


def _rows(
    case: Case, rounds: int, aims: dict[str, float], peaks_of: Sequence[str]
) -> list[list[str]]:
    with workers(take_times, [Timing(case, rounds, _slow_rounds(rounds))]) as (worker,):
        times: dict[str, list[float]] = worker.receive()
    hand_out = times.pop(HAND_OUT)
    times[WANDB] = [a - b for a, b in zip(times[WANDB], hand_out, strict=True)]
    peaks = {name: _peak(case, name) for name in peaks_of}
    rows = [[case.title, "", "", "", "", ""]]
    for name in SHOWN:
        own = times[name]
        ratios = [a / b for a, b in zip(own, times[FLOOR], strict=False)]
        aim = aims.get(name)
        peak = peaks.get(name)
        rows.append(
            [
                f"  {name}",
                _three_digits(own),
                _three_digits(ratios),
                "" if aim is None else f"{aim:g}",
                f"{median(times[WANDB]) / median(own):.0f}" if name in OWN else "",
                "" if peak is None else f"{peak:.1f}",
            ]
        )
    return rows


def _three_digits(values: Sequence[float]) -> str:
    middle = median(values)
    return with_range(values, ".2f" if middle < 10 else ".1f" if middle < 100 else ".0f")


def _peak(case: Case, name: str) -> float | None:
    with workers(take_peak, [Peak(case, name)]) as (worker,):
        peak: float | None = worker.receive()
    return peak
