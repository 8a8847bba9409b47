"""Microseconds of CPU that one record costs the core, along ranks, layers and runs; and its calls.

Messages are packed before the clock starts. Decoding and folding are timed apart, in one thread,
without sockets and without a store.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks.harness import rss_mb
from benchmarks.report import show
from benchmarks.senders import VARIANTS, healthy_columns, manifest_of, stats_of
from gradwatch_server.core.entries import Entry, Opened, Received
from gradwatch_server.core.state import State
from gradwatch_server.record_codec import decode
from gradwatch_wire import Envelope, Hello, Record, encode

LAYERS: Final = 300
START_NS: Final = 1_763_000_000 * 10**9
STEP_NS: Final = 10**8
WARM_UP_STEPS: Final = 140
"""Steps after which the judge looks at means of 64 frames, too."""

ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class Case:
    """Jobs of so many ranks and layers, one beside the other."""

    ranks: int = 1
    layers: int = LAYERS
    runs: int = 1


RANKS: Final = tuple(Case(ranks=ranks) for ranks in (1, 8, 64, 512, 4096))
WIDTHS: Final = tuple(Case(layers=layers) for layers in (10, 100, 300, 1_000, 3_000, 10_000))
RUNS: Final = tuple(Case(runs=runs, layers=10) for runs in (1, 100, 10_000))
COUNTED: Final = (Case(ranks=1), Case(ranks=8))
COUNTED_STEPS: Final = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of one record of a case, and the memory of a rank."""

    case: Case
    decode_us: float
    fold_us: float
    memory_kb: float

    def row(self, title: str) -> list[str]:
        """Return the cells of its line."""
        size = getattr(self.case, title)
        return [
            f"{size:,}",
            f"{self.decode_us:.1f}",
            f"{self.fold_us:.0f}",
            f"{self.memory_kb:.0f}",
        ]


class Feed:
    """Entries of the jobs of a case, as the engine would make them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.state = State()
        self._names: dict[bytes, str] = {}
        self._columns = healthy_columns(random.Random(0), case.layers)
        self._numbers = random.Random(1)
        self._seq = 0
        self._step = 0
        for run in range(case.runs):
            for rank in range(case.ranks):
                hello = Hello(run=f"run{run}", rank=rank, world=case.ranks)
                self._names[_session(run, rank)] = hello.run
                self.state.apply_to(hello.run, Entry(START_NS, Opened(_session(run, rank), hello)))
        self.fold(self._messages(manifest_of(case.layers)))

    def next_step(self) -> Iterable[bytes]:
        """Yield the messages of all ranks of all runs at the next step."""
        columns = self._columns[self._step % VARIANTS]
        record = stats_of(self._step, columns, self._numbers)
        self._step += 1
        return self._messages(record)

    def fold(self, messages: Iterable[bytes]) -> None:
        self.apply(map(decode, messages))

    def apply(self, envelopes: Iterable[Envelope]) -> None:
        now_ns = START_NS + self._step * STEP_NS
        for envelope in envelopes:
            name = self._names[envelope.session]
            alerts = self.state.apply_to(name, Entry(now_ns, Received(envelope)))
            assert not alerts, alerts

    def _messages(self, record: Record) -> Iterable[bytes]:
        self._seq += 1
        for run in range(self.case.runs):
            for rank in range(self.case.ranks):
                envelope = Envelope(
                    session=_session(run, rank), seq=self._seq, low=1, record=record
                )
                yield encode(envelope)


def run(*, quick: bool = False, records: int = 4_000, calls: bool = False) -> None:
    """Measure and print."""
    if calls:
        _count(COUNTED)
        return
    records = 64 if quick else records
    for title, cases in (("ranks", RANKS), ("layers", WIDTHS), ("runs", RUNS)):
        costs = [_cost(case, records) for case in (cases[:2] if quick else cases)]
        show(
            f"fold, along {title}",
            (title, "decode us", "fold us", "kB a run and rank"),
            [cost.row(title) for cost in costs],
            f"CPU of one record: {10 if title == 'runs' else LAYERS} layers x 6 columns if not "
            f"said, median of {ROUNDS} rounds, {records} records or as many as a step has. decode: "
            "from the bytes; fold: frames, judge, rules, window.",
            *(_slope(costs) if title == "layers" else ()),
        )


def _slope(costs: Sequence[Cost]) -> Iterator[str]:
    """Yield what a layer and column costs more above 300 layers."""
    base = next((cost for cost in costs if cost.case.layers == LAYERS), None)
    for cost in costs:
        if base is not None and cost.case.layers > LAYERS:
            more = (cost.fold_us - base.fold_us) / (cost.case.layers - LAYERS) / 6
            yield f"{cost.case.layers:,} layers: {more:.3f} us for a layer and column above 300"


def _cost(case: Case, records: int) -> Cost:
    before_mb = rss_mb()
    feed = Feed(case)
    for _ in range(WARM_UP_STEPS if case.runs < 1_000 else 2):
        feed.fold(feed.next_step())
    per_step = case.ranks * case.runs
    memory_kb = 1e3 * (rss_mb() - before_mb) / per_step
    decoding, folding = [], []
    for _ in range(ROUNDS):
        messages = [list(feed.next_step()) for _ in range(max(1, records // ROUNDS // per_step))]
        for own in messages:
            began = time.thread_time()
            envelopes = [decode(message) for message in own]
            decoded = time.thread_time()
            feed.apply(envelopes)
            folding.append(1e6 * (time.thread_time() - decoded) / len(own))
            decoding.append(1e6 * (decoded - began) / len(own))
    return Cost(case, median(decoding), median(folding), memory_kb)


def _count(cases: Sequence[Case]) -> None:
    """Count the calls of one record, and the files that it passes."""
    rows = []
    for case in cases:
        python, c, files = calls_of_record(case)
        rows.append([str(case.ranks), f"{python:.1f}", f"{c:.1f}", str(files)])
    show(
        "fold, calls",
        ("ranks", "Python", "C", "files"),
        rows,
        f"Calls of one record of {LAYERS} layers x 6 columns, decoding included, and the files of "
        "gradwatch whose functions were called.",
    )


def calls_of_record(case: Case) -> tuple[float, float, int]:
    """Return the calls of Python and of C that a record takes, and the files that it passes."""
    feed = Feed(case)
    for _ in range(WARM_UP_STEPS):
        feed.fold(feed.next_step())
    messages = [message for _ in range(COUNTED_STEPS) for message in feed.next_step()]
    counts, files = _calls_of(feed.fold, messages)
    return counts["call"] / len(messages), counts["c_call"] / len(messages), files


def _calls_of(
    fold: Callable[[Iterable[bytes]], None], messages: Sequence[bytes]
) -> tuple[Counter[str], int]:
    counts: Counter[str] = Counter()
    files: set[str] = set()

    def note(frame: Any, event: str, _argument: object) -> None:
        counts[event] += 1
        if event == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        fold(messages)
    finally:
        sys.setprofile(None)
    return counts, sum("gradwatch_" in name for name in files)


def _session(run: int, rank: int) -> bytes:
    return run.to_bytes(8, "big") + rank.to_bytes(8, "big")
