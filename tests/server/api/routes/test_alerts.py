"""Alerts of a run and alert events by cursor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from gradwatch_wire import Beat, Bye
from gradwatch_wire.jsonable import jsonable
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NAN = math.nan


def test_alerts_of_a_run_can_be_asked_for_by_state(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    peer = attach()
    peer.steps(0, NAN, 1.0, 1.0, 1.0, NAN, 1e-9)
    health(step=5)
    path = f"/runs/{run}/alerts"

    def states(state: str = "") -> list[str]:
        alerts = service.json(path, params={"state": state} if state else {})
        return [f"{alert['rule']} {alert['state']}" for alert in alerts]

    assert states() == ["vanishing pending", "nonfinite firing", "nonfinite resolved"]
    assert states("pending") == ["vanishing pending"]
    assert states("firing") == ["nonfinite firing"]
    assert states("resolved") == ["nonfinite resolved"]
    assert service.json(path)[1]["origin"]["value"] == "NaN"
    assert service.json(path)[1]["origin"]["before"][0] == {"step": 1, "l2": 1.0}


def test_alert_events_are_paged_by_cursor(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    """Oldest first, after the cursor, across all runs."""
    start = service.newest_event()
    attach().steps(0, NAN, 1.0, 1.0, 1.0, NAN)
    health(step=4)
    events = service.json("/alerts", params={"after": start})
    cursors = [event["cursor"] for event in events]

    assert cursors == list(range(start + 1, start + 1 + len(events)))
    # Ranks of other runs may fall silent meanwhile.
    assert [e["state"] for e in events if e["run"] == run] == ["firing", "resolved", "firing"]
    assert service.json("/alerts", params={"after": start, "limit": 1}) == events[:1]
    assert service.json("/alerts", params={"after": cursors[-1], "run": run}) == []
    assert service.json("/alerts")[0]["cursor"] == 1


def test_alerts_of_all_runs_come_as_they_stand(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    peer = attach()
    peer.steps(0, NAN, 1.0, 1.0, 1.0, NAN)
    health(step=4)

    found = service.json("/alerts/latest", params={"run": run})

    assert [own["state"] for own in found] == ["firing", "resolved"]
    assert {own["phase"] for own in found} == {"running"}
    assert found[0]["cursor"] > found[1]["cursor"]
    for own in found:
        (event,) = service.json("/alerts", params={"after": own["cursor"] - 1, "limit": 1})
        assert own == event | {"phase": "running"}
    older = {"run": run, "before": found[0]["cursor"]}
    assert service.json("/alerts/latest", params=older) == found[1:]
    firing = {"run": run, "firing": "true"}
    assert service.json("/alerts/latest", params=firing) == found[:1]
    of_all = service.json("/alerts/latest?firing=true&limit=1000")
    assert found[0] in of_all
    cursors = [own["cursor"] for own in of_all]
    assert cursors == sorted(cursors, reverse=True)
    assert {own["state"] for own in of_all} == {"firing"}
    assert service.get("/alerts/latest?before=0").status_code == 422
    peer.send(Bye(reason="closed"))
    peer.acked()
    wait_until(lambda: service.json(f"/runs/{run}/health")["phase"] == "ended", "the end")
    assert service.json("/alerts/latest", params=firing) == []  # it fired to the end
    assert service.json("/alerts/latest", params={"run": run})[0]["phase"] == "ended"


def test_the_alert_a_rank_gets_is_the_one_the_api_shows(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    peer = attach()
    peer.stats(0, (NAN, 1.0))
    while not peer.alerts:
        peer.say(Beat())
    health(step=0)
    (shown,) = service.json(f"/runs/{run}/alerts")

    assert jsonable(peer.alerts[0]) == shown
