"""The parts of the benchmark: which loads are sent to which targets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.cluster_load.load import WARM, Load
from benchmarks.cluster_load.passes import SAVE_S, Pass, measure
from benchmarks.cluster_load.sizing import Record
from benchmarks.cluster_load.targets import Stores, Target, single

LAYERS: Final = 100
SIZING_LAYERS: Final = 1_000
PARTITIONS: Final = 64
RUNS, RANKS = 64, 2

GRID: Final = tuple((nodes, partitions) for nodes in (1, 2, 3) for partitions in (1, 8, 64))
QUICK_GRID: Final = ((1, 64),)

FLAT_LAYERS: Final = 20
FLAT_RATE: Final = 800.0
FLAT: Final = {"ranks": ((1, 16), (1, 4_096)), "runs": ((10, 1), (10_000, 1))}
"""Runs, and ranks of each: of one run, or runs of one rank."""

QUICK_FLAT: Final = {"ranks": ((1, 2), (1, 8)), "runs": ((2, 1), (8, 1))}

Place = Callable[[], AbstractContextManager[Target]]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same load on the single process, and on a cluster.

    Args:
        alone: The single process.
        cluster: The cluster.
    """

    alone: Pass
    cluster: Pass


def grid(stores: Stores, *, quick: bool) -> list[tuple[int, int, Pair]]:
    """Measure numbers of nodes and partitions, each right after the single process."""
    load = Load.of(RUNS, RANKS, 200 if quick else 3_000, LAYERS, None)
    found = []
    alone: Pass | None = None
    for nodes, partitions in QUICK_GRID if quick else GRID:
        if alone is None or partitions == 1:  # once for each number of nodes
            alone = _on(single, load)
        cluster = _on(partial(stores.cluster, nodes, partitions), load)
        found.append((nodes, partitions, Pair(alone, cluster)))
    return found


def flatness(stores: Stores, *, quick: bool) -> list[tuple[str, int, Pair]]:
    """Measure few and many ranks, and few and many runs, at the same number of records a second."""
    records = 200 if quick else 10_000
    found = []
    for axis, sizes in (QUICK_FLAT if quick else FLAT).items():
        for runs, ranks in sizes:
            load = Load.of(runs, ranks, records, FLAT_LAYERS, FLAT_RATE)
            found.append((axis, max(runs, ranks), _pair(stores, load)))
    return found


def sizing(stores: Stores, *, quick: bool) -> tuple[Pair, Pair, Record]:
    """Measure what is counted on paper: large records, signs of life, and memory."""
    # As many steps as there are from one saving to the next.
    load = Load(2, 16, 2 if quick else round(SAVE_S), 10 if quick else SIZING_LAYERS)
    frames = load.runs * load.steps
    memory: dict[str, float] = {}

    def look(target: Target) -> None:
        memory["session"] = target.used("sessions_bytes") / load.sessions
        memory["frame"] = target.used("window_bytes") / (frames + load.runs * WARM)

    alone = _on(single, load, look)
    large = Pair(alone, _on(partial(stores.cluster, 1, PARTITIONS), load))
    # Four times as often as ranks do, so that what a node does anyway hardly counts.
    ranks, steps = (8, 4) if quick else (1_024, 20)
    beats = Load(1, ranks, steps, FLAT_LAYERS, rate=2.0 * ranks, beats=True)
    signs = _pair(stores, beats)
    own = large.cluster
    each = own.each_of(load.sessions)  # each rank sends one a second
    record = Record(
        wire_bytes=own.record_bytes,
        log_bytes=own.written.log_bytes / load.records,
        node_s=each.nodes,
        nats_s=each.nats,
        beat_node_s=signs.cluster.each.nodes,
        beat_nats_s=signs.cluster.each.nats,
        session_bytes=memory["session"],
        frame_bytes=memory["frame"],
        frame_wal_bytes=own.written.wal_bytes / frames,
        frame_postgres_s=own.cpu.postgres / frames + own.saving.postgres / frames,
    )
    return large, signs, record


def _pair(stores: Stores, load: Load) -> Pair:
    return Pair(_on(single, load), _on(partial(stores.cluster, 1, PARTITIONS), load))


def _on(place: Place, load: Load, look: Callable[[Target], None] = lambda _: None) -> Pass:
    with place() as target:
        return measure(target, load, look)
