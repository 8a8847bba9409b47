"""One target's thread over a real store and a real receiver, without an engine."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.notify.alert_lookup import AlertLookup
from gradwatch_server.notify.deadline import Deadline
from gradwatch_server.notify.notification import Notification
from gradwatch_server.notify.notifiers.base import DeliveryError, Notifier
from gradwatch_server.notify.policy import Policy
from gradwatch_server.notify.settings import Target
from gradwatch_server.notify.worker import TargetWorker
from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.rows import NewAlertEvent
from gradwatch_server.storage.sqlite.deliveries import open_deliveries
from gradwatch_server.storage.sqlite.store import SQLiteStore
from tests.server.notify.alerts import event
from tests.support.core import Cluster
from tests.support.receiver import Receive
from tests.support.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    made = SQLiteStore.open(tmp_path, Clock())
    yield made
    made.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DeliveryLog]:
    made = open_deliveries(tmp_path)
    yield made
    made.close()


@pytest.fixture
def work(store: SQLiteStore, log: DeliveryLog) -> Iterator[Callable[..., TargetWorker]]:
    """Start a worker: `work(url, group_wait_s=0.0)`, or over a notifier of the test's own."""
    made: list[TargetWorker] = []

    def begin(url: str, notifier: Notifier | None = None, **settings: Any) -> TargetWorker:
        target = Target.model_validate({"url": url, "group_interval_s": 0.0} | settings)
        own = notifier or target.notifier("oncall")
        events = store.alert_events
        made.append(TargetWorker("oncall", own, target.policy(), events, log, None))
        made[-1].start(AlertLookup(lambda _run: None))
        return made[-1]

    yield begin
    for own in made:
        own.stop()
        own.join(5.0)


def add(store: SQLiteStore, first: int, count: int, **changes: Any) -> None:
    """Store events of alerts of their own."""
    events = []
    for number in range(first, first + count):
        alert = event(0, f"{number:016x}", **changes).alert
        events.append(NewAlertEvent(alert["id"], alert["state"], alert["run"], json.dumps(alert)))
    store.alert_events.add(events)


@pytest.mark.slow
def test_a_thousand_alerts_at_once_are_few_messages(
    store: SQLiteStore, receive: Receive, work: Callable[..., TargetWorker]
) -> None:
    receiver = receive()
    worker = work(receiver.url, group_wait_s=0.5)
    add(store, 0, 1_000)
    worker.wake()
    wait_until(lambda: worker.status.cursor == 1_000 and not worker.status.num_pending)

    assert 1 <= len(receiver.messages) <= 3
    assert "1,000 alerts" in receiver.text or len(receiver.messages) > 1
    add(store, 0, 1_000, state="resolved")
    worker.wake()
    wait_until(lambda: worker.status.cursor == 2_000 and not worker.status.num_pending)
    assert len(receiver.messages) <= 6
    assert receiver.titles[-1].startswith("[resolved] gpt: ")


def test_events_that_are_stored_while_nobody_wakes_it_are_found(
    store: SQLiteStore, receive: Receive, work: Callable[..., TargetWorker]
) -> None:
    receiver = receive()
    first = work(receiver.url, group_wait_s=0.0)
    first.stop()
    first.join(5.0)
    add(store, 0, 3)
    work(receiver.url, group_wait_s=0.0)

    receiver.has("3 alerts (3 nonfinite)")


@pytest.mark.slow
def test_what_stands_at_the_end_of_a_run_is_not_sent_again(
    store: SQLiteStore, log: DeliveryLog, receive: Receive
) -> None:
    receiver = receive()
    jobs = {run: Cluster(names=("a",), run=run) for run in ("gpt", "other")}
    views, events = {}, []
    for run, job in jobs.items():
        job.now_ns = time.time_ns()
        job.start().step(0, math.nan)
        (alert,) = (each for each in job.alerts if each.rule == "nonfinite")
        views[run] = view_run(job.state.runs[run])
        facts = json.dumps(event(0, alert.id, run=run).alert)
        events.append(NewAlertEvent(alert.id, "firing", run, facts))
    at_once = Policy(group_wait_s=0.0, group_interval_s=0.0, resend_s=0.05)
    notifier = Target.model_validate({"url": receiver.url}).notifier("oncall")
    worker = TargetWorker("oncall", notifier, at_once, store.alert_events, log, None)
    store.alert_events.add(events)
    worker.start(AlertLookup(views.get))
    try:
        wait_until(lambda: len(receiver.messages) > 2, "it is sent again")
        jobs["gpt"].bye(0)
        views["gpt"] = view_run(jobs["gpt"].state.runs["gpt"])
        settled = len(receiver.messages) + 2  # some may be on their way
        wait_until(lambda: len(receiver.messages) > settled + 2, "the other is sent again")
        assert not any("gpt" in str(message) for message in receiver.messages[settled:])
    finally:
        worker.stop()
        worker.join(5.0)


@pytest.mark.slow
def test_a_doubt_outlives_a_refusal(
    store: SQLiteStore, receive: Receive, work: Callable[..., TargetWorker]
) -> None:
    receiver = receive()
    receiver.hang()
    worker = work(f"{receiver.url}?rto=0.1", group_wait_s=0.0)
    add(store, 0, 1)
    worker.wake()
    wait_until(lambda: worker.status.num_attempts >= 1)
    receiver.status = 503
    receiver.go_on()
    wait_until(lambda: "503" in (worker.status.error or ""))
    receiver.status = 200

    receiver.has("This may have been sent before")


def test_a_delivery_log_that_cannot_be_written_keeps_nobody_from_being_told(
    store: SQLiteStore,
    log: DeliveryLog,
    receive: Receive,
    work: Callable[..., TargetWorker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = receive()
    worker = work(receiver.url, group_wait_s=0.0)
    log._db.execute("PRAGMA query_only=1")
    add(store, 0, 1)
    worker.wake()
    receiver.has("event 1")
    add(store, 1, 1)
    worker.wake()
    receiver.has("event 2")
    log._db.execute("PRAGMA query_only=0")
    add(store, 2, 1)
    worker.wake()
    receiver.has("event 3")

    def saved() -> bool:
        found = log.load("oncall")
        assert found is not None
        return [entry.is_told for entry in found.entries] == [True] * 3

    wait_until(saved, "all that was told is saved")
    assert caplog.text.count("may come twice after a restart (told once)") == 1


def test_an_error_of_ours_does_not_end_it(
    store: SQLiteStore, work: Callable[..., TargetWorker], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Notifier):
        name = "broken"

        def __init__(self) -> None:
            pass

        def send(self, notice: Notification) -> None:
            raise ValueError("nobody thought of this")

        def test(self, page_url: str | None) -> None: ...

    worker = work("json://127.0.0.1", Broken(), group_wait_s=0.0)
    add(store, 0, 1)
    worker.wake()
    wait_until(lambda: "nobody thought of this" in caplog.text)

    assert worker._thread.is_alive()


def test_a_call_that_never_ends_is_given_up_and_costs_one_thread() -> None:
    """The next one waits for it, and goes on once it is over."""
    goes_on = threading.Event()

    def hang() -> None:
        goes_on.wait(60)

    deadline = Deadline("hanging", deadline_s=0.05)
    before = threading.active_count()
    with pytest.raises(DeliveryError, match=r"longer than 0\.05 s"):
        deadline.run(hang)
    for _ in range(3):
        with pytest.raises(DeliveryError, match="an earlier message is still on its way"):
            deadline.run(lambda: None)
    assert threading.active_count() == before + 1
    goes_on.set()
    wait_until(lambda: threading.active_count() == before)
    deadline.run(lambda: None)


def test_a_receiver_that_says_a_byte_now_and_then_has_a_deadline(receive: Receive) -> None:
    target = Target.model_validate({"url": receive(0, is_slow=True).url})
    notifier = target.notifier("slow")
    began_s = time.monotonic()
    with pytest.raises(DeliveryError, match=r"longer than 0\.3 s"):
        Deadline("slow", deadline_s=0.3).run(lambda: notifier.test(None))

    assert time.monotonic() - began_s >= 0.3
