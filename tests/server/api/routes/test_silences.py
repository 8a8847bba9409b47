"""Acknowledging and silencing over HTTP, with a real engine behind it; also over a restart."""

from __future__ import annotations

import math
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from tests.support.aggregator import Serve
from tests.support.engine import Start
from tests.support.listener import Listen
from tests.support.problems import problem
from tests.support.waiting import PATIENCE_S, wait_until

NAN = math.nan


def post(service: Any, path: str, **body: Any) -> httpx.Response:
    return httpx.post(service.url + path, json=body, timeout=PATIENCE_S, trust_env=False)


def events(service: Any, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.json("/alerts", params=query)
    return found


@pytest.fixture
def own(serve: Serve, tmp_path: Any) -> Any:
    return serve()


@pytest.fixture
def train(own: Any) -> Any:
    """Attach one rank with layers a and b."""

    def begin(run: str) -> Any:
        return own.peer(run=run).attach(["a", "b"])

    return begin


def test_acknowledged_and_silenced_over_a_kill(own: Any, train: Any, listen: Listen) -> None:
    stream = listen(own.url, "/alerts/stream", after=0)
    peer = train("gpt")
    peer.stats(0, [NAN, 1.0], loss=1.0)
    peer.acked()
    (fired,) = wait_until(lambda: events(own))
    answer = post(own, f"/alerts/{fired['id']}/ack", by="ada", comment="looking")
    assert answer.json()["acknowledged"]["by"] == "ada"
    assert post(own, f"/alerts/{fired['id']}/ack", by="bob").json() == answer.json()
    new = post(own, "/silences", layers="b", for_s=3600, by="ada")
    assert (new.status_code, new.json()["warnings"]) == (201, [])
    assert stream.cursors(2) == [1, 2]

    own.stop(signal.SIGKILL)
    own.start()
    (kept,) = own.json("/silences")
    assert kept == {k: v for k, v in new.json().items() if k != "warnings"}
    (alert,) = own.json("/runs/gpt/alerts")
    assert alert["acknowledged"]["comment"] == "looking"

    stream = listen(own.url, "/alerts/stream", after=0)
    everything = listen(own.url, "/alerts/stream?silenced=true", after=0)
    other = train("bert")
    other.stats(0, [1.0, NAN], loss=1.0)
    other.acked()
    peer = train("gpt")
    peer.stats(0, [NAN, NAN], loss=1.0)
    peer.acked()
    assert everything.cursors(4) == [1, 2, 3, 4]
    assert stream.cursors(3) == [1, 2, 4]
    told = events(own)
    assert [(e["run"], e["silenced"]) for e in told] == [
        ("gpt", False),
        ("gpt", False),
        ("bert", True),
        ("gpt", False),
    ]
    assert [e["cursor"] for e in events(own, run="bert")] == [3]
    assert [e["cursor"] for e in events(own, state="firing", after=1, limit=2)] == [2, 3]
    assert events(own, state="resolved") == []

    path = f"/silences/{kept['id']}"
    assert httpx.delete(own.url + path, trust_env=False).status_code == 204
    assert own.json("/silences") == []
    other.stats(1, [1.0, NAN], loss=1.0)
    other.acked()
    assert stream.cursors(4) == [1, 2, 4, 5]
    assert stream.events[-1]["update"]["news"] == ["silence_ended"]


def soon(**ahead: float) -> str:
    return (datetime.now(UTC) + timedelta(**ahead)).isoformat()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"run": "gpt", "by": "ada", "until": soon(hours=-1)}, "until: a time within the next"),
        ({"run": "gpt", "by": "ada", "until": soon(days=400)}, "until: a time within the next"),
        ({"run": "gpt", "by": "ada", "until": "2099-01-01T00:00:00"}, "timezone"),
        ({"run": "gpt", "by": "ada", "for_s": -1}, "for_s"),
        ({"run": "gpt", "by": "ada"}, "give either until or for_s"),
        ({"run": "gpt", "for_s": 60}, "by"),
        ({"by": "ada", "for_s": 60}, "this would silence everything"),
        ({"run": "gpt", "by": "ada", "for_s": 60, "layer": "x"}, "body layer"),
        ({"run": "", "by": "ada", "for_s": 60}, "run"),
    ],
)
def test_a_silence_that_makes_no_sense_is_refused(
    client: TestClient, body: dict[str, Any], says: str
) -> None:
    status, detail = problem(client.post("/silences", json=body))

    assert status == 422
    assert says in detail
    assert client.get("/silences").json() == []


def test_a_silence_that_fits_nothing_is_warned_of(client: TestClient) -> None:
    body = {"run": "gtp", "rule": "explodin", "by": "ada", "for_s": 60}
    answer = client.post("/silences", json=body)

    assert answer.status_code == 201
    assert [text.partition(":")[0] for text in answer.json()["warnings"]] == ["run", "rule"]
    assert client.delete(f"/silences/{answer.json()['id']}").status_code == 204


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("POST", "/alerts/0123456789abcdef/ack", 404, "no alert '0123456789abcdef'"),
        ("DELETE", "/silences/0123456789abcdef", 404, "no silence '0123456789abcdef'"),
        ("GET", "/alerts?after=7", 422, "query after: 7 was not given out yet, newest is 0"),
        ("GET", "/alerts?sate=firing", 422, "'sate' is not known here; allowed: after, limit"),
        ("GET", "/alerts?state=pending", 422, "state"),
        ("GET", "/runs?state=x", 422, "'state' is not known here; allowed: cursor, limit, phase"),
        ("GET", "/alerts/stream?rum=x", 422, "allowed: run, silenced, token"),
    ],
)
def test_what_is_not_there_is_said(
    client: TestClient, method: str, path: str, status: int, says: str
) -> None:
    """A cursor from the future, a parameter that nobody knows, an id that was never given out."""
    body = {"by": "ada"} if method == "POST" else None
    found, detail = problem(client.request(method, path, json=body))

    assert found == status
    assert says in detail


def test_only_the_write_token_silences(locked: TestClient, reader: dict[str, str]) -> None:
    writer = {"Authorization": f"Bearer {'w' * 43}"}
    body = {"run": "gpt", "by": "ada", "for_s": 60}

    assert locked.post("/silences", json=body, headers=reader).status_code == 403
    assert locked.post("/silences", json=body, headers=writer).status_code == 201
    assert len(locked.get("/silences", headers=reader).json()) == 1


@pytest.mark.slow
def test_an_engine_that_is_gone_refuses_in_time(client: TestClient, start: Start) -> None:
    api = client.app._app.state.shared  # type: ignore[attr-defined]
    api.engine.stop()
    answer = client.post("/silences", json={"run": "gpt", "by": "ada", "for_s": 60})

    assert answer.status_code == 503
    assert answer.json()["detail"] == "the aggregator stops"
