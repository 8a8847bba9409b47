"""Records per second of the whole path, beside a loop that only receives and unpacks.

The aggregator is a real `gradwatch serve`: it decodes under limits, checks, commits with fsync,
acknowledges, merges frames, evaluates them, and counts. The peer is `bare.py`. Both get the very
same messages from the same senders under the same flow control, in turns.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from benchmarks.bare import run_bare
from benchmarks.harness import Worker, aggregator, cpu_seconds, logged, wait_until, workers
from benchmarks.report import ratios, show, with_range
from benchmarks.senders import COLUMNS, LAYERS, TIMEOUT_S, Sent, Work, run_sender

RUN: Final = "bench-ingest"
SENDERS: Final = (1, 8, 64)


class Pass(NamedTuple):
    """One receiver's records per second, CPU seconds for 1,000 of them, and bytes written.

    `written` is the bytes written to the disk for a byte of records, by the end of the pass;
    `sent_again` the records that were sent more than once.
    """

    rate: float
    cpu_s: float
    sent_again: int
    written: float = 0.0


def run(*, quick: bool = False, records: int = 24_000, rounds: int = 5) -> None:
    """Measure and print."""
    if quick:
        records, rounds = 800, 1
    for senders in SENDERS:
        _compare(records, senders, rounds)


def _compare(records: int, senders: int, rounds: int) -> None:
    steps = records // senders
    pairs = [(_gradwatch(senders, steps), _bare(senders, steps)) for _ in range(rounds)]
    own, bare = zip(*pairs, strict=True)
    show(
        f"ingest, {senders} senders",
        ("receiver", "records/s", "ratio", "CPU s/1000", "ratio", "sent again"),
        [_row("gradwatch", own, bare), _row("bare loop", bare, bare)],
        f"{LAYERS} layers x {len(COLUMNS)} columns a record; {records} records a pass; median of "
        f"{rounds} passes of each in turns (range). gradwatch: acknowledged = committed, fsynced.",
        "senders: a process each, with the client's own session and credit.",
        "written to the disk for a byte of records: "
        f"{with_range([each.written for each in own], '.2f')}.",
        "ratio: share of the bare loop's rate, and multiple of its CPU time (all threads of the "
        "receiver). With few cores the senders, too, bound what the bare loop reaches.",
    )


def _row(name: str, own: Sequence[Pass], bare: Sequence[Pass]) -> list[str]:
    row = [name]
    for part, form, ratio_form in ((0, ",.0f", ".2f"), (1, ".3f", ".1f")):
        values, base = ([each[part] for each in passes] for passes in (own, bare))
        row += [with_range(values, form), format(median(ratios(values, base)), ratio_form)]
    return [*row, str(sum(each.sent_again for each in own))]


def _gradwatch(senders: int, steps: int) -> Pass:
    with aggregator() as server, _welcomed(server.ingest, senders, steps) as crowd:
        before, written = server.cpu_s, server.written_bytes
        began_ns, sent = _race(crowd)
        total = sum(each.records for each in sent)
        # All are acknowledged by now; what is left is that the last batch is applied and shown.
        wait_until(
            lambda: server.records(RUN).get("stored", 0) >= total, TIMEOUT_S, "all to be stored"
        )
        seconds = (time.monotonic_ns() - began_ns) / 1e9
        cpu_s, written = server.cpu_s - before, server.written_bytes - written
        counted = server.records(RUN)
        assert counted["stored"] == total == logged(server.directory).total(), (counted, total)
        assert counted["lost"] == counted["unresolved"] == 0, counted
        # Alerts cost more than records: with any of them it is not their rate that is measured.
        alerts = server.find(f"/runs/{RUN}/alerts")
        # Senders race without a barrier, so that one of many may be told to lag.
        assert all(alert["rule"] == "liveness" for alert in alerts), alerts
        written_share = written / server.stored_bytes
    return Pass(total / seconds, 1000 * cpu_s / total, _sent_again(sent), written_share)


def _bare(senders: int, steps: int) -> Pass:
    with workers(run_bare, [None]) as (receiver,):
        with _welcomed(receiver.receive(), senders, steps) as crowd:
            before = cpu_seconds(receiver.pid)
            began_ns, sent = _race(crowd)
            seconds = (max(each.finished_ns for each in sent) - began_ns) / 1e9
            cpu_s = cpu_seconds(receiver.pid) - before
        receiver.tell("stop")
        received, total = receiver.receive(), sum(each.records for each in sent)
    assert received >= total, (received, sent)  # some are sent again
    return Pass(total / seconds, 1000 * cpu_s / total, _sent_again(sent))


def _sent_again(sent: Sequence[Sent]) -> int:
    return sum(each.sent - each.records for each in sent)


@contextlib.contextmanager
def _welcomed(endpoint: str, senders: int, steps: int) -> Iterator[list[Worker]]:
    """Start the sender processes; go on once every session is welcomed."""
    jobs = [Work(endpoint, RUN, rank, senders, steps) for rank in range(senders)]
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
