"""What is lost and what is doubled in each fault, and how long recovery takes.

Real training processes with the real client at a steady pace, a real aggregator, real signals. What
was produced is the highest sequence number that a client gave out; what was stored is counted in
the log itself, session by session, and a record that is there twice is a duplicate.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.harness import Aggregator, Pipe, Worker, aggregator, logged, wait_until, workers
from benchmarks.report import show

RUN: Final = "bench-reliability"
RATE: Final = 100.0
LAYERS: Final = 148
CATCH_UP_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a training process has to do: `steps` at `rate` per second, 0 for as fast as it can."""

    endpoint: str
    steps: int
    rate: float = RATE
    layers: int = LAYERS
    buffer_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one fault."""

    produced: int
    stored: int
    lost: int
    duplicated: int
    recovery_s: list[float]


def run(*, quick: bool = False, records: int = 1_000_000) -> None:
    """Measure and print."""
    scale = 0.1 if quick else 1.0
    rows = []
    for name, fault, steps, buffer_bytes in FAULTS:
        with aggregator(is_started=False) as server:
            outcome = _suffer(server, fault, max(100, int(steps * scale)), buffer_bytes, scale)
        rows.append(_row(name, outcome))
    show(
        "reliability",
        ("fault", "produced", "stored", "lost", "unaccounted", "doubled", "recovery s"),
        rows,
        f"One training process of {LAYERS} layers, {RATE:g} records/s. lost: as the aggregator "
        "declares. unaccounted: produced, neither stored nor declared. recovery: from the start of "
        "the process to its first /readyz, median.",
    )
    _watch_memory(2_000 if quick else records)


def _suffer(
    server: Aggregator,
    fault: Callable[[Aggregator, Worker, float], list[float]],
    steps: int,
    buffer_bytes: int,
    scale: float,
) -> Outcome:
    if fault is not _late:
        server.start()
    with workers(train, [Job(server.ingest, steps, buffer_bytes=buffer_bytes)]) as (worker,):
        recovery_s = fault(server, worker, scale)
        try:
            produced = int(worker.receive())
        except EOFError:  # it was killed, and what it produced died with it
            produced = 0
    wait_until(lambda: bool(server.records(RUN)), CATCH_UP_S, "the run")
    if produced:
        wait_until(lambda: _accounted(server) >= produced, CATCH_UP_S, "all records")
    else:
        time.sleep(2.0)
    lost = int(server.records(RUN)["lost"])
    server.stop(signal.SIGKILL)
    stored = logged(server.directory)
    return Outcome(
        produced=produced or sum(stored.values()),
        stored=len(stored),
        lost=lost,
        duplicated=sum(stored.values()) - len(stored),
        recovery_s=recovery_s,
    )


def _accounted(server: Aggregator) -> int:
    records = server.records(RUN)
    return int(records.get("stored", 0)) + int(records.get("lost", 0))


def _row(name: str, outcome: Outcome) -> list[str]:
    unaccounted = outcome.produced - outcome.stored - outcome.lost
    numbers = (outcome.produced, outcome.stored, outcome.lost, unaccounted, outcome.duplicated)
    recovery = f"{median(outcome.recovery_s):.2f}" if outcome.recovery_s else ""
    return [name, *(f"{number:,}" for number in numbers), recovery]


def _none(_server: Aggregator, _worker: Worker, _scale: float) -> list[float]:
    return []


def _killed(server: Aggregator, _worker: Worker, scale: float) -> list[float]:
    """SIGKILL under load, ten times."""
    wait_until(lambda: bool(server.records(RUN)), CATCH_UP_S, "the run")
    taken = []
    for _ in range(max(2, int(10 * scale))):
        time.sleep(1.5)
        server.stop(signal.SIGKILL)
        server.start()
        taken.append(server.started_s)
    return taken


def _stopped(server: Aggregator, _worker: Worker, scale: float) -> list[float]:
    """SIGSTOP for 30 s."""
    wait_until(lambda: bool(server.records(RUN)), CATCH_UP_S, "the run")
    server.pause(30.0 * scale)
    return []


def _late(server: Aggregator, _worker: Worker, scale: float) -> list[float]:
    """Started after training."""
    time.sleep(5.0 * scale)
    server.start()
    return [server.started_s]


def _worker_killed(server: Aggregator, worker: Worker, scale: float) -> list[float]:
    """SIGKILL of the training process."""
    wait_until(lambda: bool(server.records(RUN)), CATCH_UP_S, "the run")
    time.sleep(5.0 * scale)
    os.kill(worker.pid, signal.SIGKILL)
    return []


FAULTS: Final = (
    ("none", _none, 1_000, 32 << 20),
    ("aggregator killed 10 times", _killed, 3_000, 32 << 20),
    ("aggregator stopped for 30 s", _stopped, 4_000, 32 << 20),
    ("the same, buffer of 1 MB", _stopped, 4_000, 1 << 20),
    ("aggregator started late", _late, 1_000, 32 << 20),
    ("training process killed", _worker_killed, 100_000, 32 << 20),
)


def train(job: Job, pipe: Pipe) -> None:
    """Collect at a steady pace, close, and send how many records were numbered."""
    import torch  # noqa: PLC0415 - only the trainer needs it

    import gradwatch  # noqa: PLC0415

    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.ones(64) for _ in range(job.layers))
    for parameter in model:
        parameter.grad = torch.ones(64)
    watch = gradwatch.attach(model, run=RUN, endpoint=job.endpoint, buffer_bytes=job.buffer_bytes)
    assert isinstance(watch, gradwatch.Watch)
    due = time.perf_counter()
    for _ in range(job.steps):
        watch.collect(loss=1.0)
        due += 1.0 / job.rate if job.rate else 0.0
        pause = due - time.perf_counter() if job.rate else 0.0
        if pause > 0.0:
            time.sleep(pause)
        elif (
            not job.rate and int(watch.stats()["pending"]) > 512
        ):  # as fast as the sender takes them, and no faster
            time.sleep(0.005)
    settled = time.monotonic() + 30.0
    while watch.stats()["pending"] and time.monotonic() < settled:
        time.sleep(0.05)
    watch.close()
    pipe.send(watch._sender.session.source.buffer.last)


def _watch_memory(records: int) -> None:
    with aggregator() as server:
        idle_mb = server.rss_mb
        with workers(train, [Job(server.ingest, records, rate=0.0, layers=8)]) as (worker,):
            worker.receive()
        full_mb = server.rss_mb
    show(
        "resident memory of the aggregator",
        ("after", "MB"),
        [["start", f"{idle_mb:.0f}"], [f"{records:,} records of 8 layers", f"{full_mb:.0f}"]],
    )
