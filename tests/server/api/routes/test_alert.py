"""One alert over HTTP: the steps around it, its events, and what silences it."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from tests.support.aggregator import Aggregator
from tests.support.problems import problem
from tests.support.records import stats_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NAN = math.nan


@pytest.fixture
def alert(service: Aggregator, request: Any) -> Any:
    """A NaN at step 12 that goes on to step 14, in a run of its own."""
    run = f"details-{request.node.name}"
    peer = service.peer(run=run).attach(("a", "b"))
    for step in range(20):
        norm = NAN if 12 <= step < 15 else float(step + 1)
        peer.send(stats_of(step, (norm, 2.0), loss=1.0))
    peer.acked()

    def found() -> Any:
        answers = service.json(f"/runs/{run}/alerts")
        return [answer for answer in answers if answer["rule"] == "nonfinite"]

    return wait_until(found)[0]


def test_the_steps_around_it_are_shown(service: Aggregator, alert: Any) -> None:
    """Eight before and eight from it on, and the step to go back to."""
    found = service.json(f"/alerts/{alert['id']}")

    assert found["first_step"] == 12
    assert found["last_good_step"] == 11
    before, after = found["origin"]["before"], found["origin"]["after"]
    assert [(own["step"], own["l2"]) for own in before] == [(n, n + 1.0) for n in range(4, 12)]
    assert [own["step"] for own in after] == list(range(12, 20))
    assert [own["l2"] for own in after] == ["NaN"] * 3 + [16.0, 17.0, 18.0, 19.0, 20.0]
    same = service.json(f"/runs/{alert['run']}/alerts")
    assert {key for own in same for key in own} <= set(found)


def test_its_events_and_silences_are_there(service: Aggregator, alert: Any) -> None:
    """Oldest first; a silence of another run is not its own."""
    made = {"rule": "nonfinite", "for_s": 60, "by": "ada"}
    url = f"{service.url}/silences"
    fitting = httpx.post(url, json=made | {"run": alert["run"]}).json()
    httpx.post(url, json=made | {"run": "another"})

    def found() -> Any:
        own = service.json(f"/alerts/{alert['id']}")
        return own if own["silences"] else None

    own = wait_until(found)
    assert [silence["id"] for silence in own["silences"]] == [fitting["id"]]
    assert own["events"][0]["state"] == "firing"
    cursors = [event["cursor"] for event in own["events"]]
    assert cursors == sorted(cursors)


def test_one_that_is_not_there_is_a_404(service: Aggregator) -> None:
    status, detail = problem(service.get("/alerts/0123456789abcdef"))

    assert (status, "/alerts has those that are" in detail) == (404, True)


def test_all_layers_of_an_alert_come_in_pages(service: Aggregator) -> None:
    """Thousands, of which the alert itself names twenty; once it is over these are what is left."""
    names = tuple(f"block.{n}.weight" for n in range(2_500))
    peer = service.peer(run="wide").attach(names)

    def send(first: int, count: int, norm: float) -> None:
        for step in range(first, first + count):
            peer.send(stats_of(step, [1.0] * 500 + [norm] * 2_000, loss=1.0))
        peer.acked()
        service.shows(peer)

    send(0, 3, 1.0)
    send(3, 2, NAN)
    (alert,) = [
        alert for alert in service.json("/runs/wide/alerts") if alert["rule"] == "nonfinite"
    ]
    path = f"/alerts/{alert['id']}/layers"
    assert (len(alert["layers"]), alert["num_layers"]) == (20, 2_000)

    found, cursor = [], 0
    while cursor is not None:
        page = service.json(f"{path}?limit=900&cursor={cursor}")
        assert (page["total"], page["reason"]) == (2_000, None)
        found += page["layers"]
        cursor = page["next"]
    assert found == list(names[500:])
    assert service.json(f"{path}?q=.777.")["layers"] == ["block.777.weight"]

    send(5, 60, 1.0)
    wait_until(lambda: service.json(f"/alerts/{alert['id']}")["state"] == "resolved")
    left = service.json(path)
    assert (len(left["layers"]), left["total"]) == (20, 2_000)
    assert "only the first" in left["reason"]
    assert problem(service.get("/alerts/0123/layers"))[0] == 404
    assert problem(service.get(f"{path}?limit=0"))[0] == 422
