"""What one record costs the aggregator's core, with all rules and with five of them.

The core alone, in this process: no socket, no decoding, no database. Both sets of rules fold the
very same entries, a few frames each in turns, so that both see the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Final

import numpy as np

from benchmarks.report import show
from benchmarks.spread import with_range
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.entries import Entry, Opened, Received, RulesSet
from gradwatch_server.core.state import State
from gradwatch_wire import Column, Envelope, Hello, Manifest, Record, Stats

FIVE: Final = ("nonfinite", "exploding", "vanishing", "gain", "records_lost")
NUMEL: Final = 1_000
WARM_FRAMES: Final = 40
"""By then there is a history, and rules judge against it."""

MAX_RATIO: Final = 1.15


@dataclass(frozen=True, slots=True)
class Size:
    """One load. Every layer is a module of its own, the costliest case."""

    runs: int
    ranks: int
    layers: int

    @property
    def records(self) -> int:
        """Records of one frame of all runs."""
        return self.runs * self.ranks


SIZES: Final = (
    Size(1, 1, 10),
    Size(1, 1, 300),
    Size(1, 1, 4_000),
    Size(1, 8, 300),
    Size(1, 64, 300),
    Size(1, 1_024, 300),
    Size(100, 1, 300),
    Size(1_000, 1, 300),
)
QUICK: Final = (*SIZES[:4], Size(20, 1, 10))


def run(*, quick: bool = False) -> None:
    """Measure and print."""
    rows = [_row(size, rounds=9 if quick else 25) for size in (QUICK if quick else SIZES)]
    show(
        "fold",
        ("runs", "ranks", "layers", "all rules us", "five us", "ratio"),
        rows,
        "Time of the core per record, folded into its run: median over rounds (range). Healthy "
        "numbers, all gradient columns.",
        f"five: {', '.join(FIVE)}; the others are off. Baselines are kept in both.",
        f"ratio: median over rounds of all rules over five; not to be above {MAX_RATIO}.",
    )


def _row(size: Size, rounds: int) -> list[str]:
    frames = max(1, 256 // size.records)  # of one turn
    entries = _entries(size)
    states = [State(), State()]
    off = {rule.name: {"enabled": False} for rule in REGISTRY if rule.name not in FIVE}
    states[1].apply(Entry(1, RulesSet(off)))
    opening = list(islice(entries, 2 * size.records + WARM_FRAMES * size.records))
    for state in states:
        _seconds(state, opening)
    costs: list[tuple[float, float]] = []
    for number in range(rounds):
        turn = list(islice(entries, frames * size.records))
        order = (0, 1) if number % 2 else (1, 0)  # neither always finds the caches warm
        took = {place: _seconds(states[place], turn) for place in order}
        costs.append((1e6 * took[0] / len(turn), 1e6 * took[1] / len(turn)))
    return [
        f"{size.runs:,}",
        f"{size.ranks:,}",
        f"{size.layers:,}",
        with_range([own for own, _ in costs], ",.0f"),
        with_range([own for _, own in costs], ",.0f"),
        f"{median(own / five for own, five in costs):.2f}",
    ]


def _seconds(state: State, entries: Sequence[Entry]) -> float:
    began_ns = time.perf_counter_ns()
    for entry in entries:
        state.apply(entry)
    return (time.perf_counter_ns() - began_ns) / 1e9


def _entries(size: Size) -> Iterator[Entry]:
    """Yield what opens the runs, and then frame after frame of all of them, without an end."""
    who = [(run, rank) for run in range(size.runs) for rank in range(size.ranks)]
    sessions = [(number + 1).to_bytes(16, "big") for number in range(len(who))]
    names = tuple(f"layer.{layer}.weight" for layer in range(size.layers))
    manifest = Manifest(
        manifest_id=1,
        names=names,
        numel=Column.pack("<u8", [NUMEL] * size.layers),
        dtypes=("float32",) * size.layers,
        order="forward",
    )
    for session, (number, rank) in zip(sessions, who, strict=True):
        yield Entry(1, Opened(session, Hello(run=f"run {number}", rank=rank, world=size.ranks)))
        yield _received(session, 1, manifest)
    rng = np.random.default_rng(0)
    step = 0
    while True:
        stats = _stats(rng, step, size.layers)
        for session in sessions:
            yield _received(session, step + 2, stats)
        step += 1


def _received(session: bytes, seq: int, record: Record) -> Entry:
    envelope = Envelope(session=session, seq=seq, low=1, record=record)
    return Entry(1 + seq * 1_000_000, Received(envelope))


def _stats(rng: np.random.Generator, step: int, layers: int) -> Stats:
    l2 = np.exp(rng.normal(0.0, 0.1, layers))
    none = Column.pack("<u4", [0] * layers)
    columns = {
        "l2": Column.pack("<f8", l2.tolist()),
        "l1": Column.pack("<f8", (20.0 * l2).tolist()),
        "linf": Column.pack("<f8", (0.1 * l2).tolist()),
        "zeros": none,
        "nans": none,
        "infs": none,
    }
    scalars = {"loss": float(2.0 + rng.normal(0.0, 0.05))}
    return Stats(manifest_id=1, step=step, scalars=scalars, columns=columns)
