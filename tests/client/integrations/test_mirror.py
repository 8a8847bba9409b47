"""A mirror does no harm to the training, whatever its tracker does."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.integrations import _mirror
from gradwatch.integrations._mirror import Mirror, title_of
from gradwatch_wire import Event
from tests.support.waiting import wait_until

ALERT = {"state": "firing", "severity": "warning", "rule": "spike", "run": "gpt"}


class Noting:
    """A tracker that notes what it is given; one that fails raises, one that hangs waits."""

    name = "Noting"

    def __init__(self, *, fails: bool = False, hangs: bool = False, url: str | None = None) -> None:
        self.alerts: list[Mapping[str, Any]] = []
        self.flushed = threading.Event()
        self.going_on = threading.Event()
        self._fails = fails
        self._hangs = hangs
        self._url = url

    def url(self) -> str | None:
        return self._url

    def link(self, run: str, url: str) -> None: ...

    def log(self, steps: Mapping[int, Mapping[str, float]]) -> None: ...

    def alert(self, alert: Mapping[str, Any]) -> None:
        if self._hangs:
            self.going_on.wait()
        self.alerts.append(alert)
        if self._fails:
            msg = "the tracker's server is gone"
            raise ConnectionError(msg)

    def flush(self) -> None:
        self.flushed.set()


def test_alerts_arrive_in_order_and_all_of_them_before_close_returns() -> None:
    tracker = Noting()
    with Mirror(tracker) as mirror:
        for number in range(20):
            mirror(ALERT | {"id": number})

    assert [own["id"] for own in tracker.alerts] == list(range(20))
    assert tracker.flushed.is_set()
    mirror.close()  # again: nothing happens


def test_a_tracker_that_raises_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Noting(fails=True)
    with Mirror(tracker) as mirror:
        mirror(ALERT)
        mirror(ALERT)

    assert len(tracker.alerts) == 2
    (line,) = caplog.messages
    assert "mirror: ConnectionError" in line
    assert "the tracker's server is gone" in line


def test_a_tracker_that_hangs_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither who gives an alert, however many, nor who closes."""
    monkeypatch.setattr(_mirror, "CLOSE_S", 0.05)
    tracker = Noting(hangs=True)
    mirror = Mirror(tracker)
    for _ in range(_mirror.MAX_ALERTS + 10):
        mirror(ALERT)
    mirror.close()

    assert not tracker.alerts
    assert "mirror: Full()" in caplog.text
    tracker.going_on.set()
    wait_until(tracker.flushed.is_set, "the thread ends")


def test_a_watch_without_an_aggregator_is_followed_in_vain() -> None:
    """There is no address to ask, and nothing to tell."""
    model = nn.Linear(2, 2)
    tracker = Noting()
    with (
        Mirror(tracker) as mirror,
        gradwatch.attach(model, run="alone", endpoint="tcp://127.0.0.1:9", on_alert=mirror) as own,
    ):
        mirror.follow(own)
        model(torch.ones(1, 2)).sum().backward()
        own.collect()

    assert tracker.flushed.is_set()


def test_the_run_links_to_that_of_the_tracker_while_it_trains(aggregator: Any, attach: Any) -> None:
    """Once, though the aggregator never says where the run's own page is; alerts come as well."""
    url = "https://tracker.example/runs/1"
    tracker = Noting(url=url)
    with Mirror(tracker, every_s=0.01) as mirror:
        watch = attach(nn.Linear(2, 2), on_alert=mirror)
        mirror.follow(watch)
        mirror(ALERT)
        wait_until(lambda: aggregator.of(Event) and tracker.alerts, "the link and the alert")
        watch.close()

    assert [own.data for own in aggregator.of(Event)] == [{"name": "Noting", "url": url}]
    assert tracker.alerts == [ALERT]


def test_a_tracker_without_an_address_is_not_linked_to(aggregator: Any, attach: Any) -> None:
    tracker = Noting()
    with Mirror(tracker, every_s=0.01) as mirror:
        watch = attach(nn.Linear(2, 2), on_alert=mirror)
        mirror.follow(watch)
        mirror(ALERT)
        wait_until(lambda: tracker.alerts, "the mirror has looked around")
        watch.close()

    assert aggregator.of(Event) == []
    assert watch.stats()["faults"] == 0


@pytest.mark.parametrize("every_s", [0, -1.0, float("nan")])
def test_a_pause_that_is_none_is_refused(every_s: float) -> None:
    with pytest.raises(ValueError, match="every_s: above 0, got"):
        Mirror(Noting(), every_s=every_s)


def test_a_title_says_how_bad_what_and_where() -> None:
    assert title_of(ALERT) == "warning: spike in gpt"
    assert title_of(ALERT | {"state": "resolved"}) == "resolved: spike in gpt"
