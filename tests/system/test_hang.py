"""Python stacks of a real hang: which rank is stuck, in which function."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def test_an_alert_of_a_hang_says_in_which_functions_its_ranks_are(
    aggregator: Aggregator, train: Train
) -> None:
    """Rank 1 waits where it gets its batch, and rank 0 for rank 1, in the backward pass."""
    aggregator.start()
    options = ("--pause-s", "0.02", "--hold-at", "60", "--hold-rank", "1")
    hung = train(2, "--run", "hung", "--steps", "200", *options)
    hung.wait_for_training()
    aggregator.reaches("hung", 59)

    def stalled() -> dict[str, Any] | None:
        return next((alert for alert in aggregator.json("/runs/hung/alerts")), None)

    alert = wait_until(stalled, "the alert")
    assert alert is not None
    assert (alert["rule"], alert["severity"], alert["origin"]["step"]) == ("liveness", "info", 59)
    stuck, waiting = alert["origin"]["notes"][-1].removeprefix("stacks: ").split(", ")
    assert {stuck.partition(" at ")[0], waiting.partition(" at ")[0]} == {
        "rank 0 in _engine_run_backward",
        "rank 1 in interrupt",
    }
    assert alert["origin"]["cause"] in f"{stuck}, {waiting}"
    assert alert["origin"]["cause"] in alert["message"]
    ranks = aggregator.health("hung")["ranks"]
    assert ["worker.py" in (rank["stack"] or "") for rank in ranks] == [True, True]

    hung.release()
    wait_until(lambda: aggregator.health("hung")["step"] == 199, "the end")
    assert [rank["stack"] for rank in aggregator.health("hung")["ranks"]] == [None, None]
