"""CPU time that a watch adds to the steps of small models: each step in full, rarely, by a budget.

One model and one optimizer; blocks of steps with and without a watch take turns in random order.
Copies of a model would differ by where they lie in memory. A row of blocks without a watch beside
blocks without one shows what the machine does to the figures.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, nn

import gradwatch
from benchmarks.harness import Aggregator, aggregator
from benchmarks.report import show

BARE: Final = "bare"
MODES: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "bare, beside bare": None,
    "each step (every=1)": {"every": 1},
    "followed only (every=1000000)": {"every": 1_000_000},
    "by a budget (overhead=0.01)": {"overhead": 0.01},
}


class Residual(nn.Module):
    """A stack of small layers, the gradients of which are neither tiny nor huge."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))

    def forward(self, batch: Tensor) -> Tensor:
        for layer in self.layers:
            batch = batch + 0.1 * layer(batch)
        return batch


@dataclass(frozen=True, slots=True)
class Case:
    """A training, the steps of one block, and those before it in which a budget settles."""

    title: str
    model: nn.Module
    batch: Tensor
    steps: int
    settling: int


def run(*, quick: bool = False, rounds: int = 15) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mlp = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    cases = [
        Case("MLP, 6 tensors", mlp, torch.randn(64, 16), 1_024, 2_048),
        Case("148 tensors of 16 to 256", Residual(74), torch.randn(8, 16), 256, 768),
    ]
    rows: list[list[str]] = []
    with aggregator() as server:
        for case in cases:
            rows += _rows(case, server, 1 if quick else rounds, 16 if quick else 1)
    show(
        "overhead",
        ("what", "added us", "added %", "quartiles us"),
        rows,
        f"CPU time of the training thread for one step, medians of {1 if quick else rounds} pairs "
        "of blocks in random order, on 1 thread, with an aggregator that runs. A budget settles "
        "before its block begins.",
    )


def _rows(case: Case, server: Aggregator, rounds: int, divided: int) -> list[list[str]]:
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3)
    found: dict[str, list[float]] = {name: [] for name in (BARE, *MODES)}
    names, order = list(found), random.Random(0)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            settings = MODES.get(name)
            watch = None
            if settings is not None:
                watch = gradwatch.attach(
                    case.model, optimizer, run="overhead", endpoint=server.ingest, **settings
                )
            is_budget = settings is not None and "overhead" in settings
            _train(case, optimizer, (case.settling if is_budget else 64) // divided)
            found[name].append(_train(case, optimizer, case.steps // divided))
            if watch is not None:
                watch.close()
    bare = found.pop(BARE)
    rows = [[f"{case.title}: {median(bare):.0f} us a step", "", "", ""]]
    for name, own in found.items():
        added = sorted(a - b for a, b in zip(own, bare, strict=True))
        quartiles = f"{added[len(added) // 4]:.1f} to {added[3 * len(added) // 4]:.1f}"
        share = median(added) / median(bare)
        rows.append([f"  {name}", f"{median(added):.1f}", f"{share:.1%}", quartiles])
    return rows


def _train(case: Case, optimizer: torch.optim.Optimizer, steps: int) -> float:
    """Train, and return the CPU time of this thread for a step, microseconds."""
    began_s = time.thread_time()
    for _ in range(steps):
        optimizer.zero_grad()
        case.model(case.batch).square().mean().backward()
        optimizer.step()
    return (time.thread_time() - began_s) / steps * 1e6
