"""Records per second of the whole path, beside a loop that only receives and unpacks.

The aggregator is a real `gradwatch serve`: it decodes under limits, checks, commits with fsync,
acknowledges, merges frames, evaluates them, and counts. The peer is `bare.py`. Both get the very
same messages from the same senders under the same flow control, in turns.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.bare import run_bare
from benchmarks.harness import Worker, aggregator, cpu_seconds, logged, wait_until, workers
from benchmarks.report import show, with_range
from benchmarks.senders import COLUMNS, LAYERS, TIMEOUT_S, WINDOW, Sent, Work, run_sender

RUN: Final = "bench-ingest"
MAX_PROCESSES: Final = 8
SENDERS: Final = (1, 8, 64)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one receiver did with one load."""

    records: int
    wire_bytes: int
    again: int
    late: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def cpu_per_1000(self) -> float:
        return 1000 * self.cpu_s / self.records


def run(*, quick: bool = False, records: int = 24_000, rounds: int = 5) -> None:
    """Measure and print."""
    if quick:
        records, rounds = 800, 1
    rows = []
    for senders in SENDERS[:2] if quick else SENDERS:
        steps = max(1, records // senders)
        pairs = [(_gradwatch(senders, steps), _bare(senders, steps)) for _ in range(rounds)]
        rows += _rows(senders, pairs)
    show(
        "ingest",
        (
            "receiver",
            "senders",
            "records/s",
            "MB/s",
            "ratio",
            "CPU s/1000",
            "ratio",
            "resent",
            "late",
        ),
        rows,
        f"{LAYERS} layers x {len(COLUMNS)} columns a record; {records} records a pass; median of "
        f"{rounds} passes of each in turns (range). gradwatch: acknowledged = committed, fsynced.",
        f"Up to {MAX_PROCESSES} senders are a process each; more are sessions with a socket each, "
        f"spread over {MAX_PROCESSES} processes. At most {WINDOW} records in flight per sender.",
        "ratio: share of the bare loop's rate, and multiple of its CPU time (all threads of the "
        "receiver). With few cores the senders, too, bound what the bare loop reaches.",
        "resent: asked for again by the receiver. late: stored, but after their frame had closed.",
    )


def _rows(senders: int, pairs: Sequence[tuple[Pass, Pass]]) -> list[list[str]]:
    rows = []
    for number, name in enumerate(("gradwatch", "bare loop")):
        passes = [pair[number] for pair in pairs]
        rates = [pair[number].rate / pair[1].rate for pair in pairs]
        loads = [pair[number].cpu_s / pair[1].cpu_s for pair in pairs]
        rows.append(
            [
                name,
                str(senders),
                with_range([p.rate for p in passes], ",.0f"),
                format(median(p.wire_bytes / p.seconds / 1e6 for p in passes), ".0f"),
                with_range(rates, ".2f") if number == 0 else "1",
                format(median(p.cpu_per_1000 for p in passes), ".3f"),
                format(median(loads), ".1f") if number == 0 else "1",
                str(sum(p.again for p in passes)),
                str(sum(p.late for p in passes)),
            ]
        )
    return rows


def _gradwatch(senders: int, steps: int) -> Pass:
    with aggregator() as server, _welcomed(server.ingest, senders, steps) as crowd:
        before = server.cpu_s
        began_ns, sent = _race(crowd)
        total = sum(s.records for s in sent)
        # All are acknowledged by now; what is left is that the last batch is applied and shown.
        wait_until(
            lambda: server.records(RUN).get("stored", 0) >= total,
            TIMEOUT_S,
            "all records to be stored",
        )
        seconds = (time.monotonic_ns() - began_ns) / 1e9
        cpu = server.cpu_s - before
        counted = server.records(RUN)
        assert counted["stored"] == total == logged(server.directory).total(), (counted, total)
        assert counted["lost"] == counted["unresolved"] == 0, counted
        # Alerts cost more than records: with any of them it is not their rate that is measured.
        alerts = server.find(f"/runs/{RUN}/alerts")
        assert not alerts, alerts
    return _pass(sent, seconds, cpu, counted["late"])


def _bare(senders: int, steps: int) -> Pass:
    with workers(run_bare, [None]) as (receiver,):
        with _welcomed(receiver.receive(), senders, steps) as crowd:
            before = cpu_seconds(receiver.pid)
            began_ns, sent = _race(crowd)
            seconds = (max(s.finished_ns for s in sent) - began_ns) / 1e9
            cpu = cpu_seconds(receiver.pid) - before
        receiver.tell("stop")
        received = receiver.receive()
    assert received == sum(s.records + s.again for s in sent), (received, sent)
    return _pass(sent, seconds, cpu)


@contextlib.contextmanager
def _welcomed(endpoint: str, senders: int, steps: int) -> Iterator[list[Worker]]:
    """Start the sender processes; go on once every session is welcomed."""
    share = min(senders, MAX_PROCESSES)
    jobs = [
        Work(endpoint, RUN, world=senders, ranks=tuple(range(i, senders, share)), steps=steps)
        for i in range(share)
    ]
    with workers(run_sender, jobs) as crowd:
        for worker in crowd:
            assert worker.receive() == "welcomed"
        yield crowd


def _race(crowd: Sequence[Worker]) -> tuple[int, list[Sent]]:
    """Start all senders at once; return when that was, and what they report."""
    began_ns = time.monotonic_ns()
    for worker in crowd:
        worker.tell("go")
    return began_ns, [worker.receive() for worker in crowd]


def _pass(sent: Sequence[Sent], seconds: float, cpu_s: float, late: int = 0) -> Pass:
    return Pass(
        records=sum(s.records for s in sent),
        wire_bytes=sum(s.wire_bytes for s in sent),
        again=sum(s.again for s in sent),
        late=late,
        seconds=seconds,
        cpu_s=cpu_s,
    )
