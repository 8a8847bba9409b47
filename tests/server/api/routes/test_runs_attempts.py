"""Earlier attempts of a run, by every route below it, also those that no view shows."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.attempt_history import MAX_SHOWN
from gradwatch_wire import Bye
from tests.support.aggregator import Aggregator, Serve
from tests.support.problems import problem
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ATTEMPTS = MAX_SHOWN + 4
ROUTES = ("", "/health", "/ranks", "/gains", "/groups", "/noise-scale", "/alerts")


@pytest.fixture
def crashing(serve: Serve) -> Any:
    """An aggregator with a run that was begun anew many times, each time on a host of its own."""
    service = serve()
    for number in range(1, ATTEMPTS + 1):
        peer = service.peer(host=f"node-{number}").attach()
        peer.steps(0, *[1.0] * number, math.nan)
        if number < ATTEMPTS:
            peer.send(Bye(reason="exception"))
            peer.acked()
        service.shows(peer)
    return service


def test_every_attempt_can_be_asked_for(crashing: Any) -> None:
    """S52: by each route; also after a restart."""
    for _ in range(2):
        for attempt in (1, 3, ATTEMPTS - 1, ATTEMPTS):
            ranks = crashing.json(f"/runs/gpt/ranks?attempt={attempt}")
            assert ranks["attempt"] == attempt
            (rank,) = ranks["ranks"]
            assert rank["host"] == f"node-{attempt}"
            assert rank["last_step"] == attempt
            # On a busy machine the peer, which sends no BEAT, may be silent by now.
            assert (rank["state"] in {"alive", "silent"}) == (attempt == ATTEMPTS)
            for route in ROUTES:
                answer = crashing.json(f"/runs/gpt{route}?attempt={attempt}")
                shown = answer if isinstance(answer, list) else [answer]
                assert {own["attempt"] for own in shown} == {attempt}, route
            whole = crashing.json(f"/runs/gpt?attempt={attempt}")
            assert len(whole["attempts"]) == ATTEMPTS
            assert whole["records"]["stored"] == crashing.json("/runs/gpt")["records"]["stored"]
            assert crashing.json(f"/runs/gpt/health?attempt={attempt}")["first_bad"]["step"] == (
                attempt
            )
        assert crashing.stop() == 0
        crashing.start()

    for route in ROUTES:
        refused = problem(crashing.get(f"/runs/gpt{route}?attempt={ATTEMPTS + 1}"))
        assert refused == (404, f"no attempt {ATTEMPTS + 1} of run 'gpt'; kept are 1 to {ATTEMPTS}")
        assert problem(crashing.get(f"/runs/gpt{route}?attempt=0"))[0] == 422


def test_without_a_number_alerts_are_those_of_all_attempts(crashing: Any) -> None:
    def attempts() -> set[int]:
        return {alert["attempt"] for alert in crashing.json("/runs/gpt/alerts")}

    # The newest alert is stored a moment after its step is shown.
    wait_until(lambda: ATTEMPTS in attempts(), "the newest alert is listed")

    assert attempts() == set(range(1, ATTEMPTS + 1))
    one = crashing.json("/runs/gpt/alerts?attempt=2&state=firing")
    assert [alert["attempt"] for alert in one] == [2]


def test_no_route_ignores_a_parameter_that_it_does_not_know(service: Aggregator) -> None:
    """S52: nor does the description of the routes itself."""
    paths = [
        path.format(run="none", step=0, alert="none")
        for path, item in service.json("/openapi.json")["paths"].items()
        if "get" in item
    ]
    for path in (*paths, "/openapi.json"):
        status, detail = problem(service.get(f"{path}?nonsense=1"))
        assert (status, detail.startswith("query: 'nonsense' is not known here")) == (422, True)
