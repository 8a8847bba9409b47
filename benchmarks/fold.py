"""What one record costs the aggregator's core, as runs, ranks and layers grow, and by its rules.

The core alone, in this process: no socket, no decoding, no database. All rules and five of them
fold the very same entries, a few frames each in turns, and the sizes of an axis take turns as well,
so that all see the same machine. What counts is the least processor time of any turn: what else a
machine does only adds to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from benchmarks.report import show
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.entries import Entry, Opened, Received, RulesSet
from gradwatch_server.core.state import State
from gradwatch_wire import Column, Envelope, Hello, Manifest, Record, Stats

FIVE: Final = ("nonfinite", "exploding", "vanishing", "gain", "records_lost")
NUMEL: Final = 1_000
WINDOW_STEPS: Final = 32
"""So that the window of the last size of all, 1,000 runs, fits into any memory, and is full."""

WARM_FRAMES: Final = 40
"""By then there is a history, and rules judge against it."""

TURN_FRAMES: Final = 16
"""As many as a block of the rule `drift`, which works at the end of each."""

MANY_RECORDS: Final = 256
"""Sizes with more of them in a frame have fewer turns."""

MAX_RATIO: Final = 1.15
FLAT: Final = 1.2


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


AXES: Final[Mapping[str, Sequence[Size]]] = {
    "runs": [Size(runs, 1, 300) for runs in (1, 10, 100, 1_000)],
    "ranks": [Size(1, ranks, 300) for ranks in (1, 8, 64, 1_024)],
    "layers": [Size(1, 1, layers) for layers in (10, 100, 1_000, 4_000)],
}
QUICK: Final[Mapping[str, Sequence[Size]]] = {
    "runs": [Size(runs, 1, 10) for runs in (1, 20)],
    "ranks": [Size(1, ranks, 10) for ranks in (1, 8)],
    "layers": [Size(1, 1, layers) for layers in (10, 300)],
}


class Load:
    """One size, folded by two states: with all rules, and with five."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.costs_us: list[tuple[float, float]] = []
        self._entries = _entries(size)
        off = {rule.name: {"enabled": False} for rule in REGISTRY if rule.name not in FIVE}
        self._states = [State(WINDOW_STEPS), State(WINDOW_STEPS)]
        self._states[1].apply(Entry(1, RulesSet(off)))
        for _ in range(2 + WARM_FRAMES):  # 2: the sessions and their manifests
            frame = list(islice(self._entries, size.records))
            for state in self._states:
                _seconds(state, frame)

    def turn(self) -> None:
        """Fold some frames with each, and note what a record took."""
        entries = list(islice(self._entries, TURN_FRAMES * self.size.records))
        order = (0, 1) if len(self.costs_us) % 2 else (1, 0)  # neither always has warm caches
        took = {place: _seconds(self._states[place], entries) for place in order}
        self.costs_us.append((1e6 * took[0] / len(entries), 1e6 * took[1] / len(entries)))

    @property
    def least_us(self) -> tuple[float, float]:
        """Least processor time for a record with all rules, and with five."""
        return min(own for own, _ in self.costs_us), min(five for _, five in self.costs_us)


def run(*, quick: bool = False) -> None:
    """Measure and print."""
    rows: list[list[str]] = []
    for axis, sizes in (QUICK if quick else AXES).items():
        rows += _rows(axis, sizes, rounds=12 if quick else 48)
    show(
        "fold",
        (
            "axis",
            "runs",
            "ranks",
            "layers",
            "all rules us",
            "to the first",
            "five us",
            "all / five",
        ),
        rows,
        "CPU time of the core per record, folded into its run: the least of all turns. Healthy "
        "numbers, all gradient columns, every layer a module of its own.",
        f"to the first: multiple of the first size of the axis; not to be above {FLAT} along runs "
        "and ranks. A frame costs the same for one rank as for many, so a record of many is less.",
        f"five: {', '.join(FIVE)}; the others are off. Baselines are kept in both.",
        f"all / five: all rules over five; not to be above {MAX_RATIO}.",
    )


def _rows(axis: str, sizes: Sequence[Size], rounds: int) -> Iterator[list[str]]:
    loads = [Load(size) for size in sizes]
    for number in range(rounds):
        for load in loads:
            if load.size.records <= MANY_RECORDS or number % 12 == 0:
                load.turn()
    first, _ = loads[0].least_us
    for load in loads:
        size, (own, five) = load.size, load.least_us
        numbers = [f"{count:,}" for count in (size.runs, size.ranks, size.layers)]
        yield [
            axis,
            *numbers,
            f"{own:,.0f}",
            f"{own / first:.2f}",
            f"{five:,.0f}",
            f"{own / five:.2f}",
        ]


def _seconds(state: State, entries: Sequence[Entry]) -> float:
    began_ns = time.thread_time_ns()
    for entry in entries:
        state.apply(entry)
    return (time.thread_time_ns() - began_ns) / 1e9


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
