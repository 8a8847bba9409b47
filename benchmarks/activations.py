"""Cost of `attach(activations=...)` in a training step, beside the same watch without it.

A small transformer trains on the CPU, a copy of it for each variant. The copies take turns step by
step, in an order that rotates, and each step is compared with that of its own turn without
activations: that cancels the drift of a machine that others use too. Nobody listens, which is the
same for all.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

import gradwatch
from benchmarks.harness import turns, unused_endpoint
from benchmarks.report import ratios, show
from gradwatch._layers.modules import Modules

WITHOUT: Final = "watched, without"
VARIANTS: Final[dict[str, Modules]] = {WITHOUT: False, "True": True, '"*"': "*"}
BLOCKS, WIDTH, HEADS, WORDS, BATCH, LENGTH = 6, 128, 4, 256, 8, 128
WARMUP: Final = 5


@dataclass(slots=True)
class Copy:
    """One variant of the training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    watch: gradwatch.Watch
    num_modules: int

    def step(self, words: Tensor) -> float:
        """Train a step; return its seconds of processor time: others may use the machine, too."""
        began = time.thread_time()
        found = self.model(words).flatten(0, 1)
        nn.functional.cross_entropy(found, words.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.thread_time() - began


def run(*, quick: bool = False, rounds: int = 300) -> None:
    """Measure and print."""
    rounds = 20 if quick else rounds
    torch.set_num_threads(1)
    copies = {name: _make(activations) for name, activations in VARIANTS.items()}
    times: dict[str, list[float]] = {name: [] for name in copies}
    words = [torch.randint(0, WORDS, (BATCH, LENGTH)) for _ in range(WARMUP + rounds)]
    for name in turns(list(copies), WARMUP + rounds):
        times[name].append(copies[name].step(words[len(times[name])]))
    for each in copies.values():
        each.watch.close()
    show(
        "activations",
        ("activations=", "modules", "CPU ms per step", "on top", "middle half of the turns"),
        [_row(name, copies[name], times) for name in copies],
        f"{BLOCKS} blocks of width {WIDTH}, {BATCH} x {LENGTH} words, one thread, {rounds} turns",
        "on top: median over the turns of the ratio to the step without, in the same turn",
    )


def _make(activations: Modules) -> Copy:
    torch.manual_seed(0)
    blocks = (
        nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        for _ in range(BLOCKS)
    )
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = gradwatch.attach(
        model, optimizer, run="bench", endpoint=unused_endpoint(), every=1, activations=activations
    )
    assert isinstance(watch, gradwatch.Watch)
    hooked = sum(
        any(type(h).__name__ == "OutputHook" for h in module._forward_hooks.values())
        for module in model.modules()
    )
    return Copy(model, optimizer, watch, hooked)


def _row(name: str, copy: Copy, times: dict[str, list[float]]) -> tuple[str, ...]:
    own = times[name][WARMUP:]
    to_without = ratios(own, times[WITHOUT][WARMUP:])
    low, _, high = statistics.quantiles(to_without, n=4)
    return (
        name,
        str(copy.num_modules),
        f"{1e3 * statistics.median(own):.1f}",
        f"{100 * (statistics.median(to_without) - 1):+.2f} %",
        f"{100 * (low - 1):+.2f} to {100 * (high - 1):+.2f}",
    )
