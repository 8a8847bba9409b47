"""From `collect()` in a training process to a webhook's receipt: alone, and beside one that hangs.

The trainer is that of `latency`. Then 1,000 alerts at once: how many messages they become, and when
the last of them is told.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.harness import Aggregator, aggregator, wait_until, workers
from benchmarks.latency import BAD_EVERY, CONFIG, WARMUP_STEPS, Trained, Training, train
from benchmarks.report import quantile, show
from tests.support.peer import Peer
from tests.support.receiver import Receiver

STORM: Final = 1_000
PATIENCE_S: Final = 120.0

_TARGET: Final = """
[notify.{name}]
url = "{url}"
rules = ["nonfinite"]
resolved = {resolved}
group_wait_s = {wait_s}
group_interval_s = {wait_s}
"""

_STEP: Final = re.compile(r"^run \S+, step (\d+),", re.MULTILINE)


def run(*, quick: bool = False, alerts: int = 200, rate: float = 100.0) -> None:
    """Measure and print."""
    if quick:
        alerts = 20
    rows = [
        ["collect() to the webhook", *_latency(alerts, rate, hangs=False)],
        ["the same beside one that hangs", *_latency(alerts, rate, hangs=True)],
    ]
    num_messages, took_s = _storm(STORM // 10 if quick else STORM)
    show(
        "notify",
        ("milliseconds", "median", "p99", "max"),
        rows,
        f"{alerts} alerts, at every {BAD_EVERY}th step, {rate:.0f} steps/s; group_wait_s = 0.",
        f"{STORM // 10 if quick else STORM} alerts as fast as one rank sends them: {num_messages} "
        f"messages, the last {took_s:.1f} s after the first record; group_wait_s = 1.",
    )


def _target(name: str, receiver: Receiver, wait_s: float, *, resolved: bool = False) -> str:
    return _TARGET.format(
        name=name, url=receiver.url, wait_s=wait_s, resolved=str(resolved).lower()
    )


@contextmanager
def _receiver() -> Iterator[Receiver]:
    made = Receiver()
    try:
        yield made
    finally:
        made.close()


def _latency(alerts: int, rate: float, *, hangs: bool) -> list[str]:
    """Return median, p99 and longest time from `collect()` to the receipt, milliseconds."""
    with _receiver() as receiver, _receiver() as hanging:
        config = CONFIG + _target("working", receiver, 0.0)
        if hangs:
            hanging.hang()
            config += _target("hanging", hanging, 0.0)
        steps = WARMUP_STEPS + alerts * BAD_EVERY
        with (
            aggregator(config) as server,
            workers(train, [Training(server.ingest, steps, rate)]) as (worker,),
        ):
            trained: Trained = worker.receive()
            wait_until(
                lambda: len(_arrivals(receiver)) >= len(trained.collected_ns),
                PATIENCE_S,
                "the webhook to be told",
            )
        arrived_ns = _arrivals(receiver)
    collected_ns = trained.collected_ns
    assert arrived_ns.keys() == collected_ns.keys(), "alerts differ"
    taken_ms = [(arrived_ns[step] - at_ns) / 1e6 for step, at_ns in collected_ns.items()]
    return [f"{quantile(taken_ms, share):.1f}" for share in (0.5, 0.99, 1.0)]


def _arrivals(receiver: Receiver) -> dict[int, int]:
    """Return the first bad step of each alert to when the webhook was told of it."""
    found: dict[int, int] = {}
    for message, at_ns in zip(receiver.messages, receiver.arrived_ns, strict=False):
        for step in _STEP.findall(message["message"]):
            found.setdefault(int(step), at_ns)
    return found


def _storm(alerts: int) -> tuple[int, float]:
    """Return the number of messages, and the seconds until the last one was taken."""
    with (
        _receiver() as receiver,
        aggregator(CONFIG + _target("storm", receiver, 1.0, resolved=True)) as server,
    ):
        peer = Peer(server.ingest, "storm").attach()
        began = time.monotonic()
        try:
            for step in range(0, 2 * alerts, 20):
                peer.steps(step, *([float("nan"), 1.0] * 10))
            wait_until(lambda: _all_is_told(server, 2 * alerts), PATIENCE_S, "all to be told")
        finally:
            peer.close()
        return len(receiver.messages), time.monotonic() - began


def _all_is_told(server: Aggregator, events: int) -> bool:
    (target,) = server.json("/notifiers")
    status: dict[str, Any] = target
    return status["cursor"] >= events and not status["pending"]
