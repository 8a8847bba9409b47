"""A run of a million steps without the hours that it takes: its rows are put into the store.

A real `gradwatch serve` takes in the run's last step. While it is stopped, the rows of all earlier
steps are written into its store as the engine writes them, and buckets are made of them. Norms are
random in float32, as clients send them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import numpy as np

from benchmarks.harness import Aggregator
from gradwatch_server.clock import Clock
from gradwatch_server.series.chunk import MAX_ROWS, Chunk
from gradwatch_server.series.encoding import encode_layers
from gradwatch_server.series.layers import KnownLayers
from gradwatch_server.storage.series_chunks import encode_chunk
from gradwatch_server.storage.series_compactor import Compactor
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import Bye
from gradwatch_wire.columns import MEASURED_COLUMNS
from tests.support.peer import Peer

RUN: Final = "long"


@dataclass(frozen=True, slots=True)
class Made:
    """What was made.

    Args:
        names: The layers.
        steps: Steps of the run, a multiple of the rows of a chunk.
        every_step_bytes: What all rows take.
        with_buckets_bytes: What they take with all buckets.
    """

    names: tuple[str, ...]
    steps: int
    every_step_bytes: int
    with_buckets_bytes: int


def make(service: Aggregator, steps: int, layers: int) -> Made:
    """Make the run, and start the aggregator again."""
    steps = steps // MAX_ROWS * MAX_ROWS
    names = tuple(f"blocks.{n // 6}.part{n % 6}.weight" for n in range(layers))
    _attend(service, names, steps)
    made = _fill(service.directory, names, steps)
    service.start()
    return made


def ask(service: Aggregator, path: str, requests: int) -> tuple[list[float], int]:
    """Return the seconds of each answer, and the bytes of one."""
    times_s, size = [], 0
    with httpx.Client(base_url=service.url, timeout=60.0) as client:
        for _ in range(requests):
            began_s = time.perf_counter()
            size = len(client.get(path).raise_for_status().content)
            times_s.append(time.perf_counter() - began_s)
    return times_s, size


def _attend(service: Aggregator, names: tuple[str, ...], steps: int) -> None:
    """Let the aggregator know the run, by its last step, and stop it."""
    peer = Peer(service.ingest, RUN)
    peer.attach(names)
    peer.stats(steps, (1.0,) * len(names))
    peer.send(Bye(reason="done"))
    peer.acked()
    peer.close()
    service.stop()


def _fill(directory: Path, names: tuple[str, ...], steps: int) -> Made:
    """Write rows and buckets."""
    store = SQLiteStore.open(directory, Clock())
    try:
        while store.series.remove(RUN, 1, 1_000):
            pass
        layers = KnownLayers(names, (1 << 16,) * len(names), {}, is_ordered=True)
        store.series.save(RUN, 1, (), encode_layers(layers))
        for chunk in _chunks(len(names), steps):
            store.series.save(RUN, 1, [encode_chunk(chunk, is_closed=True)])
        before = store.series.sizes()[0].num_bytes
        compactor = Compactor(store.series)
        compactor.note(RUN, 1)
        while compactor.is_busy:
            compactor.step()
        return Made(names, steps, before, store.series.sizes()[0].num_bytes)
    finally:
        store.close()


def _chunks(layers: int, steps: int) -> Iterator[Chunk]:
    random = np.random.default_rng(1)
    usual = np.exp(random.normal(size=layers))
    for number in range(steps // MAX_ROWS):
        chunk = Chunk(number, 0, MAX_ROWS, MEASURED_COLUMNS, layers)
        chunk.steps[:] = np.arange(number * MAX_ROWS, (number + 1) * MAX_ROWS)
        chunk.times_ns[:] = chunk.steps * 100_000_000
        chunk.offsets[:] = chunk.steps
        chunk.present[:], chunk.run_known[:] = True, True
        chunk.run[:] = random.random(chunk.run.shape).astype(np.float32)
        noise = np.exp(0.3 * random.normal(size=(MAX_ROWS, layers)))
        for place, scale in enumerate((1.0, 200.0, 0.05)):  # l2, l1, linf
            chunk.values[:, place] = (usual * noise * scale).astype(np.float32)
        chunk.values[:, 3] = random.integers(0, 50, (MAX_ROWS, layers))  # zeros
        chunk.values[:, 4:] = 0.0
        chunk.count = MAX_ROWS
        yield chunk
