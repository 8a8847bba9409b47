"""A mirror does no harm to the training, whatever its function does."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.integrations import mirror as own
from gradwatch.integrations.mirror import Mirror
from tests.support.waiting import wait_until


def alert(number: int, state: str = "firing", rule: str = "spike") -> dict[str, Any]:
    """Return an alert at a step of its number."""
    resolved = number + 1 if state == "resolved" else None
    return {
        "id": f"{number}",
        "rule": rule,
        "state": state,
        "last_step": number,
        "resolved_step": resolved,
    }


class Noting:
    """A function `log` that notes what it is given; one that fails raises, one that hangs waits."""

    def __init__(self, *, fails: bool = False, hangs: bool = False) -> None:
        self.calls: list[tuple[int, dict[str, float]]] = []
        self.going_on = threading.Event()
        self._fails = fails
        self._hangs = hangs

    def __call__(self, numbers: dict[str, float], step: int) -> None:
        if self._hangs:
            self.going_on.wait()
        self.calls.append((step, numbers))
        if self._fails:
            msg = "the tracker's server is gone"
            raise ConnectionError(msg)


def test_alerts_arrive_in_order_and_all_of_them_before_close_returns() -> None:
    """As the number of those of the rule that fire."""
    log = Noting()
    with Mirror(log) as mirror:
        mirror(alert(1))
        mirror(alert(2))
        mirror(alert(2))  # it has news
        mirror(alert(1, "resolved"))
        mirror(alert(3, rule="nonfinite"))

    spikes, bad = "gradwatch/alerts/spike", "gradwatch/alerts/nonfinite"
    assert log.calls == [
        (1, {spikes: 1.0}),
        (2, {spikes: 2.0}),
        (2, {spikes: 2.0}),
        (2, {spikes: 1.0}),
        (3, {bad: 1.0}),
    ]
    mirror.close()  # again: nothing happens


def test_a_function_that_raises_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    log = Noting(fails=True)
    with Mirror(log) as mirror:
        mirror(alert(1))
        mirror(alert(2))

    assert len(log.calls) == 2
    (line,) = caplog.messages
    assert "mirror: ConnectionError" in line
    assert "the tracker's server is gone" in line


def test_a_function_that_hangs_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither who gives an alert, however many, nor who closes."""
    monkeypatch.setattr(own, "CLOSE_S", 0.05)
    log = Noting(hangs=True)
    mirror = Mirror(log)
    for number in range(own.MAX_ALERTS + 10):
        mirror(alert(number))
    mirror.close()

    assert not log.calls
    assert "mirror: Full()" in caplog.text
    log.going_on.set()
    wait_until(lambda: not mirror._thread.is_alive(), "the thread ends")


def test_a_watch_without_an_aggregator_is_followed_in_vain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is no address to ask, and nothing to tell."""
    model = nn.Linear(2, 2)
    log = Noting()
    endpoint = "tcp://127.0.0.1:9"
    with (
        Mirror(log) as mirror,
        gradwatch.attach(model, run="alone", endpoint=endpoint, on_alert=mirror) as watch,
    ):
        mirror.follow(watch)
        model(torch.ones(1, 2)).sum().backward()
        watch.collect()

    assert log.calls == []
    assert "mirror" not in caplog.text


@pytest.mark.parametrize("every_s", [0, -1.0, float("nan")])
def test_a_pause_that_is_none_is_refused(every_s: float) -> None:
    with pytest.raises(ValueError, match="every_s: above 0, got"):
        Mirror(Noting(), every_s=every_s)
