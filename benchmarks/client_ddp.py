"""A training with DDP, with and without gradwatch: steps per second as a ratio.

Two processes train on the CPU, a thread each, in blocks of steps that take turns. The aggregator
is alive and runs on the same cores, which is harder on the training than one of its own would be.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwatch
from benchmarks.harness import Pipe, Worker, aggregator, turns, workers
from benchmarks.report import ratios, show, with_range
from benchmarks.step import BATCH, LAYERS, LENGTH, WARMUP_STEPS, WIDTH, Block, _model

RUN: Final = "bench-client-ddp"
RANKS: Final = 2
WITHOUT, WITH = "no gradwatch", "gradwatch, aggregator alive"


@dataclass(frozen=True, slots=True)
class Rank:
    """A process of the group that meets at the file `meeting`."""

    rank: int
    meeting: Path


def run(*, quick: bool = False, steps: int = 20, rounds: int = 16) -> None:
    """Measure and print."""
    if quick:
        steps, rounds = 4, 1
    rates: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    # The group must find itself on a machine without a network, too.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    with (
        tempfile.TemporaryDirectory(prefix="gradwatch-bench-") as scratch,
        aggregator() as server,
        workers(train, [Rank(rank, Path(scratch) / "group") for rank in range(RANKS)]) as ranks,
    ):
        blocks = {WITHOUT: Block(None, steps), WITH: Block(server.ingest, steps)}
        _rate(ranks, blocks[WITH])  # the first block warms up
        for name in turns((WITH, WITHOUT), rounds):
            rates[name].append(_rate(ranks, blocks[name]))
        health = server.find(f"/runs/{RUN}/health")
    show(
        "client, DDP",
        ("training", "steps/s", "ratio"),
        [
            [name, with_range(rate, ".2f"), with_range(ratios(rate, rates[WITHOUT]), ".3f")]
            for name, rate in rates.items()
        ],
        f"{RANKS} processes of a thread each, gloo; transformer of {LAYERS} layers, width {WIDTH}, "
        f"batch {BATCH} x {LENGTH} for each, AdamW; {rounds} rounds of {steps} steps of each. "
        "Ratio: to the block without of the same round.",
        f"The aggregator stored {health['records']['stored']} records of it and lost "
        f"{health['records']['lost']}.",
    )


def _rate(ranks: Sequence[Worker], block: Block) -> float:
    for worker in ranks:
        worker.tell(block)
    return block.steps / max(float(worker.receive()) for worker in ranks)


def train(job: Rank, pipe: Pipe) -> None:
    """Train block after block, until the parent ends us; send the seconds of each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{job.meeting}", rank=job.rank, world_size=RANKS)
    model = DistributedDataParallel(_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(BATCH, LENGTH, WIDTH)
    while True:
        block: Block = pipe.recv()
        watch = None
        if block.endpoint is not None:
            watch = gradwatch.attach(model, optimizer, run=RUN, endpoint=block.endpoint, every=1)
        began = 0.0
        for step in range(-WARMUP_STEPS, block.steps):
            if step == 0:
                dist.barrier()
                began = time.perf_counter()
            optimizer.zero_grad()
            loss = torch.square(model(batch)).mean()
            loss.backward()
            if watch is not None:
                watch.collect(loss=loss)
            optimizer.step()
        took_s = time.perf_counter() - began
        if watch is not None:
            watch.close()
            assert watch.stats()["faults"] == 0, watch.stats()
        pipe.send(took_s)
