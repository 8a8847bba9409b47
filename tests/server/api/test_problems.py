"""Errors of our own as problem documents."""

from __future__ import annotations

import json
import logging
import math

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from gradwatch_server.api import problems
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import make_app
from tests.support.engine import Start


def test_a_fault_of_ours_is_a_500_that_tells_nothing_of_the_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has the traceback, the caller a document."""
    app = FastAPI()
    problems.install(app)

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("secret")

    with TestClient(app, raise_server_exceptions=False) as client:
        response = client.get("/broken")

    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == response.status_code == 500
    assert "secret" not in response.text
    (record,) = [r for r in caplog.records if r.name == problems.__name__]
    assert record.levelno == logging.ERROR
    assert "secret" in str(record.exc_info)


def test_an_engine_that_is_gone_is_not_ready(start: Start) -> None:
    running = start()
    app = make_app(
        running.engine, running.store.alert_events, AlertStream(running.store.alert_events)
    )
    with TestClient(app) as client:
        assert client.get("/readyz").status_code == 200
        running.engine.stop()
        response = client.get("/readyz")

    assert response.status_code == 503
    assert response.json()["detail"] == "the engine is not running"


def test_json_keeps_what_is_not_finite() -> None:
    content = {"a": [math.nan, {"b": -math.inf}], "c": (math.inf, 1.5, None, True, "é")}

    assert problems.Json(content).body == (
        b'{"a":["NaN",{"b":"-Infinity"}],"c":["Infinity",1.5,null,true,"\\u00e9"]}'
    )


def test_json_has_nothing_that_a_terminal_acts_on() -> None:
    """A layer may be called anything; U+009B alone begins an escape sequence on some terminals."""
    name = "".join(map(chr, range(0x2100))) + "\ud800\U0001f600"
    body = bytes(problems.Json({name: [name]}).body)

    assert {byte for byte in body if not 0x20 <= byte < 0x7F} <= {0x7F}
    assert json.loads(body) == {name: [name]}


def test_a_path_that_is_not_there_is_answered_with_those_that_are() -> None:
    app = FastAPI()
    problems.install(app)

    with TestClient(app) as client:
        response = client.get("/nothing\u009b")

    assert response.status_code == 404
    assert response.json()["detail"] == (
        "nothing is at '/nothing\\x9b'; the page is at /, the runs at /runs"
    )
