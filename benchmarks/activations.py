"""What `attach(activations=...)` adds to a training step, beside the same watch without it.

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
from benchmarks.report import ratios, show, with_range
from gradwatch._layers.modules import Modules

WITHOUT: Final = "watched, without"
VARIANTS: Final[dict[str, Modules]] = {WITHOUT: False, "True": True, '"*"': "*"}
BLOCKS, WIDTH, HEADS, WORDS, BATCH, LENGTH = 6, 128, 4, 256, 8, 128
WARMUP: Final = 5
GROUP: Final = 10
"""Turns whose median makes one ratio."""


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
    rounds = 2 * GROUP if quick else rounds
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
        ("activations=", "modules", "CPU ms per step", "on top", "range of medians of 10 turns"),
        [_row(name, copies[name], times) for name in copies],
        f"{BLOCKS} blocks of width {WIDTH}, {BATCH} x {LENGTH} words, one thread, {rounds} turns",
        "on top: median over the turns of the ratio to the step without, in the same turn",
    )


def _make(activations: Modules) -> Copy:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
    )
    transformer = nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), transformer, nn.Linear(WIDTH, WORDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = gradwatch.attach(
        model, optimizer, run="bench", endpoint=unused_endpoint(), activations=activations
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
    starts = range(0, len(to_without), GROUP)
    groups = [statistics.median(to_without[start : start + GROUP]) for start in starts]
    on_top = [100 * (group - 1) for group in groups]
    return (
        name,
        str(copy.num_modules),
        f"{1e3 * statistics.median(own):.1f}",
        f"{100 * (statistics.median(to_without) - 1):+.2f} %",
        with_range(on_top, "+.2f"),
    )
