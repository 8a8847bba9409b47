"""From `collect()` in a training process to the alert on a server-sent event stream.

The trainer is a small model on the CPU that keeps a steady pace. At every eighth step one element
of one gradient becomes NaN or Inf for that step alone; with `clear_steps = 1` each is an alert of
its own. All clocks are the same machine's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import httpx
import httpx_sse

from benchmarks.harness import Aggregator, Pipe, aggregator, wait_until, workers
from benchmarks.report import quantile, show

RUN: Final = "bench-latency"
CONFIG: Final = "[rules.nonfinite]\nclear_steps = 1\n[budgets]\nalert_events_per_min = 1000000\n"
"""Each bad step is an alert of its own, and as many are told as there are."""

BAD_EVERY: Final = 8
WARMUP_STEPS: Final = 100
MEDIAN_TARGET_MS: Final = 100
P99_TARGET_MS: Final = 500
SHARES: Final = (0.5, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Training:
    """Task of the trainer."""

    endpoint: str
    steps: int
    rate: float  # steps, and so records, per second


@dataclass(frozen=True, slots=True)
class Trained:
    """Report of the trainer: when each bad step was collected, and its real pace."""

    collected_ns: dict[int, int]
    rate: float
    stats: dict[str, int | str]


def run(*, quick: bool = False, alerts: int = 400, rate: float = 200.0) -> None:
    """Measure and print."""
    if quick:
        alerts = 20
    steps = WARMUP_STEPS + alerts * BAD_EVERY
    with aggregator(CONFIG) as server:
        arrived_ns: dict[int, int] = {}  # by step
        with (
            _subscribed(server, arrived_ns),
            workers(train, [Training(server.ingest, steps, rate)]) as (worker,),
        ):
            trained: Trained = worker.receive()
            wait_until(lambda: len(arrived_ns) >= len(trained.collected_ns), 10.0, "the alerts")
        counted = server.health(RUN)["records"]
    collected = trained.collected_ns
    assert arrived_ns.keys() == collected.keys(), "alerts differ"
    assert counted["lost"] == 0, counted
    taken_ms = [(arrived_ns[step] - at_ns) / 1e6 for step, at_ns in collected.items()]
    rows = [
        ["collect() to the stream", *(f"{quantile(taken_ms, share):.1f}" for share in SHARES)],
        ["target", f"{MEDIAN_TARGET_MS:.1f}", f"{P99_TARGET_MS:.1f}", ""],
    ]
    show(
        "latency",
        ("milliseconds", "median", "p99", "max"),
        rows,
        f"{len(arrived_ns)} alerts at {trained.rate:.0f} records/s, {counted['stored']} stored, "
        f"{counted['lost']} lost; each alert is of one step, at every {BAD_EVERY}th.",
    )


@contextmanager
def _subscribed(server: Aggregator, arrived_ns: dict[int, int]) -> Iterator[None]:
    """Follow the alert stream in a thread, from before the first alert on."""
    opened = threading.Event()
    client = httpx.Client(timeout=httpx.Timeout(10.0, read=None))
    url = f"{server.url}/alerts/stream?run={RUN}"
    thread = threading.Thread(target=_follow, args=(client, url, opened, arrived_ns), daemon=True)
    thread.start()
    try:
        assert opened.wait(10.0), "the alert stream does not open"
        yield
    finally:
        client.close()


def _follow(
    client: httpx.Client, url: str, opened: threading.Event, arrived_ns: dict[int, int]
) -> None:
    try:
        with httpx_sse.connect_sse(client, "GET", url) as source:
            opened.set()
            for message in source.iter_sse():
                now_ns = time.time_ns()
                event = message.json() if message.data else {}  # the first one has an id only
                if event.get("state") == "firing":
                    arrived_ns.setdefault(event["first_step"], now_ns)
    except httpx.HTTPError:
        pass  # closed by us, or with the aggregator


def train(job: Training, pipe: Pipe) -> None:
    """Train at a steady pace; report when each bad step was collected."""
    import torch  # noqa: PLC0415 - only the trainer needs it

    import gradwatch  # noqa: PLC0415

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(8)]
    model = torch.nn.Sequential(*layers)
    watch = gradwatch.attach(model, run=RUN, endpoint=job.endpoint)
    collected_ns: dict[int, int] = {}
    began = time.monotonic()
    for step in range(job.steps):
        model.zero_grad()
        loss = torch.square(model(torch.randn(16, 64))).mean()
        loss.backward()
        bad = step >= WARMUP_STEPS and step % BAD_EVERY == 0
        if bad:
            gradient = layers[step // BAD_EVERY % len(layers)].weight.grad
            assert gradient is not None
            gradient[0, 0] = float("nan" if step % (2 * BAD_EVERY) else "inf")
        now_ns = time.time_ns()
        watch.collect(loss=loss, step=step)
        if bad:
            collected_ns[step] = now_ns
        time.sleep(max(0.0, began + (step + 1) / job.rate - time.monotonic()))
    rate = job.steps / (time.monotonic() - began)
    watch.close()
    pipe.send(Trained(collected_ns, rate, watch.stats()))
