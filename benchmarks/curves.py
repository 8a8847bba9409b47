"""What curves of a long run cost: room on the disk, time to make buckets, time to read them.

A real `gradwatch serve` takes in a run of one step. While it is stopped, the rows of all earlier
steps are written into its store as the engine writes them, and buckets are made of them; then it is
started again and asked over HTTP. Norms are random in float32, as clients send them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import numpy as np

from benchmarks.harness import Aggregator, aggregator
from benchmarks.report import quantile, show
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
REQUESTS: Final = 200


def run(*, quick: bool = False, steps: int = 1_000_000, layers: int = 10) -> None:
    """Measure and print."""
    requests = REQUESTS
    if quick:
        steps, requests = 20_000, 5
    steps = steps // MAX_ROWS * MAX_ROWS
    with aggregator() as service:
        names = tuple(f"blocks.{n // 6}.part{n % 6}.weight" for n in range(layers))
        _attend(service, names, steps)
        sizes, made_s, slices = _fill(service.directory, names, steps)
        service.start()
        asked = {what: _ask(service, path, requests) for what, path in _questions(names, steps)}
    per = steps * layers
    show(
        "curves on disk",
        ("", "bytes per layer and step", "MB"),
        [[what, f"{size / per:.2f}", f"{size / 1e6:,.0f}"] for what, size in sizes],
        f"{steps:,} steps x {layers} layers x {len(MEASURED_COLUMNS)} columns, and "
        "the run's own numbers beside them.",
        f"Making the buckets took {made_s:.1f} s, in slices of {quantile(slices, 0.5) * 1e3:.1f} "
        f"ms (p99 {quantile(slices, 0.99) * 1e3:.1f}); the engine gives it a tenth of its time.",
    )
    show(
        "curves over HTTP",
        ("question", "p50 ms", "p99 ms", "kB"),
        [
            [
                what,
                f"{quantile(times, 0.5) * 1e3:.1f}",
                f"{quantile(times, 0.99) * 1e3:.1f}",
                f"{size / 1e3:.0f}",
            ]
            for what, (times, size) in asked.items()
        ],
        f"{requests} requests one after the other, safetensors, one connection.",
    )


def _questions(names: tuple[str, ...], steps: int) -> Iterator[tuple[str, str]]:
    """Yield what is asked for, and the path."""
    layer = f"/runs/{RUN}/series?format=safetensors&layer={names[len(names) // 2]}"
    yield "one layer, all steps", layer
    yield (
        "norm and loss, all steps",
        f"/runs/{RUN}/series?format=safetensors&column=norm&column=loss",
    )
    yield "one layer, 60,000 steps", f"{layer}&from={steps // 3}&to={steps // 3 + 60_000}"
    yield "one layer, 1,000 steps", f"{layer}&from={steps // 3}&to={steps // 3 + 999}"
    yield "picture of the last 512", f"/runs/{RUN}/heatmap?format=safetensors"


def _attend(service: Aggregator, names: tuple[str, ...], steps: int) -> None:
    """Let the aggregator know the run, by its last step, and stop it."""
    peer = Peer(service.ingest, RUN)
    peer.attach(names)
    peer.stats(steps, (1.0,) * len(names))
    peer.send(Bye(reason="done"))
    peer.acked()
    peer.close()
    service.stop()


def _fill(
    directory: Path, names: tuple[str, ...], steps: int
) -> tuple[list[tuple[str, int]], float, list[float]]:
    """Write rows and buckets; return what they take, the seconds, and those of each slice."""
    store = SQLiteStore.open(directory, Clock())
    try:
        while store.series.remove(RUN, 1, 1_000):
            pass
        layers = KnownLayers(names, (1 << 16,) * len(names), {}, is_ordered=True)
        store.series.save(RUN, 1, (), encode_layers(layers))
        for chunk in _chunks(len(names), steps):
            store.series.save(RUN, 1, [encode_chunk(chunk, is_closed=True)])
        before = store.series.sizes()[0].num_bytes
        compactor, slices = Compactor(store.series), []
        compactor.note(RUN, 1)
        while compactor.is_busy:
            began_s = time.perf_counter()
            compactor.step()
            slices.append(time.perf_counter() - began_s)
        after = store.series.sizes()[0].num_bytes
        found = [("every step", before), ("with all buckets", after)]
        return [*found, ("the file, with all there is", store.used_bytes())], sum(slices), slices
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


def _ask(service: Aggregator, path: str, requests: int) -> tuple[list[float], int]:
    """Return the seconds of each answer, and the bytes of one."""
    times_s, size = [], 0
    with httpx.Client(base_url=service.url, timeout=60.0) as client:
        for _ in range(requests):
            began_s = time.perf_counter()
            size = len(client.get(path).raise_for_status().content)
            times_s.append(time.perf_counter() - began_s)
    return times_s, size
