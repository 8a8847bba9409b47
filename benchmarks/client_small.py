"""`collect()` of models so small that the calls cost more than the numbers, on one thread.

`collect()` is compared with one fused norm in float64 of the same gradients, which is what the
client enqueues for them. Between the calls some matrices are multiplied, as a training step would:
the background thread has time to send, and the caches are not left as the call wants them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Final

import torch
from torch import Tensor, nn

from benchmarks.client_cases import Case, gradients_of
from benchmarks.client_peers import COLLECT, VARIANTS
from benchmarks.harness import Pipe, workers
from benchmarks.report import show, with_range

ROUNDS: Final = 11
NUM_TINY: Final = 4000
MLP: Final = ((32, 16), (32,), (32, 32), (32,), (4, 32), (4,))

CASES: Final = (
    (Case("MLP", MLP, calls=100), 60),
    (Case("tiny", ((16,),) * 148, calls=50), 450),
    (Case("tiny", ((16,),) * NUM_TINY, calls=5), 15_000),
)
"""Models, and at most so many microseconds for one call."""

STEP_WIDTH: Final = 160
STEP_US_PER_TENSOR: Final = 10


def run(*, quick: bool = False) -> None:
    """Measure and print."""
    rows = []
    for case, aim_us in CASES:
        with workers(take_times, [(case, 1 if quick else ROUNDS)]) as (worker,):
            fused, ours = worker.receive()
        ratios = [own / base for own, base in zip(ours, fused, strict=True)]
        rows.append(
            [
                f"{case.name} ({len(case.shapes)} tensors)",
                with_range(fused, ".0f"),
                with_range(ours, ".0f"),
                f"{aim_us}",
                with_range(ratios, ".2f"),
            ]
        )
    show(
        "client, small models",
        ("gradients", "fused norm us", "collect() us", "aim us", "ratio"),
        rows,
        "Medians (range) over the rounds of the p50 of each, on 1 thread. fused norm: "
        "torch._foreach_norm in float64 of the same gradients.",
    )


def take_times(job: tuple[Case, int], pipe: Pipe) -> None:
    """Send the p50 in microseconds of the fused norm, and of `collect()`, for each round."""
    case, rounds = job
    torch.set_num_threads(1)
    model = case.model()
    gradients = gradients_of(model)
    with ExitStack() as stack:
        calls = (lambda: _fused(gradients), VARIANTS[COLLECT](model, stack))
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds + 1):  # the first warms up
            for own, call in zip(times, calls, strict=True):
                found = _p50_us(call, case, gradients)
                if turn:
                    own.append(found)
    pipe.send(times)


def _fused(gradients: list[Tensor]) -> tuple[Tensor, ...]:
    return torch._foreach_norm(gradients, 2.0, dtype=torch.float64)


def _p50_us(call: Callable[[], object], case: Case, gradients: list[Tensor]) -> float:
    step = nn.Linear(STEP_WIDTH, STEP_WIDTH)
    batch = torch.ones(STEP_WIDTH, STEP_WIDTH)
    times = []
    for _ in range(case.calls):
        until = time.perf_counter() + 1e-6 * STEP_US_PER_TENSOR * (100 + len(gradients))
        while time.perf_counter() < until:
            step(batch)
        began = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - began))
    return median(times)
