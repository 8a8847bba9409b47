"""What the routes share."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import make_app
from tests.support.engine import Start
from tests.support.problems import problem

pytestmark = pytest.mark.slow


def test_an_unknown_run_is_told_with_those_that_there_are(start: Start) -> None:
    """S54: five of them, and how many more."""
    running = start()
    events = running.store.alert_events
    with TestClient(make_app(running.engine, events, AlertStream(events))) as client:
        assert problem(client.get("/runs/x")) == (404, "no run 'x'; known runs: none yet")
        for number in range(7):
            running.peer(run=f"r{number}").greet()
            running.shows(f"r{number}")
            if number == 4:
                assert problem(client.get("/runs/x"))[1].endswith(": r0, r1, r2, r3, r4")
        expected = "no run 'x'; known runs: r0, r1, r2, r3, r4, and 2 more"
        assert problem(client.get("/runs/x")) == (404, expected)
