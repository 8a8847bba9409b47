"""Tools for coding assistants at `/mcp`, called by the client of the protocol's own package."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gradwatch_server.keys import make_keys, read_keys
from gradwatch_wire import Bye
from tests.server.api.routes.curves import send
from tests.support.aggregator import Aggregator, Serve
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LAYERS = ("net.a.weight", "net.b.weight")


def call(service: Aggregator, tool: str, token: str = "", /, **arguments: Any) -> tuple[bool, str]:
    """Return whether a tool failed, and its text."""

    async def ask() -> tuple[bool, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx2.AsyncClient(headers=headers) as http:
            transport = streamable_http_client(f"{service.url}/mcp", http_client=http)
            async with Client(transport) as client:
                answer = await client.call_tool(tool, arguments)
        (content,) = answer.content
        return bool(answer.is_error), str(getattr(content, "text", ""))

    return asyncio.run(ask())


def answered(service: Aggregator, tool: str, /, **arguments: Any) -> Any:
    is_error, text = call(service, tool, **arguments)
    assert not is_error, text
    return json.loads(text)


def is_part_of(part: dict[str, Any], whole: dict[str, Any], *but: str) -> bool:
    return all(whole[key] == own for key, own in part.items() if key not in {"page", *but})


@pytest.fixture
def bad_run(service: Aggregator, peer: Any, run: str) -> str:
    """A run whose last step is NaN."""
    send(service, peer, 0, *[1.0] * 8, math.nan)
    return run


def test_runs_are_those_of_http(service: Aggregator, bad_run: str) -> None:
    (found,) = answered(service, "runs", name=bad_run)
    (listed,) = service.json(f"/runs?q={bad_run}&spark=1")

    assert found["status"] == "critical"
    assert found["page"] == f"{service.url}/?run={bad_run}"
    assert is_part_of(found, listed)


def test_health_is_that_of_http(service: Aggregator, bad_run: str) -> None:
    found = answered(service, "health", run=bad_run)
    health = service.json(f"/runs/{bad_run}/health")

    assert found["first_bad"]["step"] == 8
    assert found["num_bad_ranks"] == 0
    health["first_bad"]["layers"] = health["first_bad"]["layers"][:5]
    assert is_part_of(found, health, "worst_layers", "alerts", "num_bad_ranks", "bad_ranks")
    assert found["worst_layers"] == health["worst_layers"]
    for one, other in zip(found["alerts"], health["alerts"]["items"], strict=True):
        assert is_part_of(one, other)


def test_a_body_that_breaks_off_is_no_fault(service: Aggregator) -> None:
    host, _, port = service.url.removeprefix("http://").rpartition(":")
    head = "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: */*\r\n"
    with socket.create_connection((host, int(port))) as broken:
        broken.sendall(f"{head.format(host)}Content-Length: 99\r\n\r\n{{".encode())

    assert isinstance(answered(service, "runs"), list)
    assert "Traceback" not in service.errors


def test_of_many_layers_the_first_few_are_named(service: Aggregator, run: str) -> None:
    names = [f"layer-{number}" for number in range(7)]
    service.peer(run=run).attach(names).stats(0, [math.nan] * 7)

    found = wait_until(lambda: answered(service, "health", run=run)["first_bad"], "a bad step")

    assert found is not None
    assert (len(found["layers"]), found["num_layers"]) == (5, 7)


def test_ranks_that_failed_are_named(service: Aggregator, run: str) -> None:
    for rank in range(2):
        peer = service.peer(run=run, rank=rank, world=2, host=f"node-{rank}").attach(LAYERS)
        peer.steps(0, 1.0, 1.0)
        peer.send(Bye(reason="exception" if rank else "closed"))
        peer.acked()

    found = answered(service, "health", run=run)

    assert (found["phase"], found["num_bad_ranks"]) == ("failed", 1)
    (bad,) = found["bad_ranks"]
    assert (bad["rank"], bad["state"], bad["host"]) == (1, "failed", "node-1")


def test_alerts_are_those_of_http_and_go_on_from_a_cursor(
    service: Aggregator, bad_run: str
) -> None:
    found = answered(service, "alerts", run=bad_run)
    events = service.json(f"/alerts?run={bad_run}")

    assert [event["cursor"] for event in found["events"]] == [event["cursor"] for event in events]
    assert all(is_part_of(*pair) for pair in zip(found["events"], events, strict=True))
    assert found["cursor"] == events[-1]["cursor"]
    more = answered(service, "alerts", run=bad_run, after=found["cursor"])
    assert more == {"events": [], "cursor": found["cursor"]}


def test_an_alert_is_explained(service: Aggregator, bad_run: str) -> None:
    alerts = service.json(f"/runs/{bad_run}/alerts")
    alert = next(alert for alert in alerts if alert["rule"] == "nonfinite")

    found = answered(service, "explain_alert", alert=alert["id"])

    assert found["page"] == f"{service.url}/?run={bad_run}&alert={alert['id']}"
    assert (found["hints"], found["origin"]["step"]) == (alert["hints"], 8)
    assert found["last_good_step"] == service.json(f"/alerts/{alert['id']}")["last_good_step"]
    assert found["raised_when"].startswith("a layer's gradient has a NaN or an Inf on any rank")


def test_a_layer_has_its_curve_and_what_was_usual(service: Aggregator, bad_run: str) -> None:
    found = answered(service, "layer", run=bad_run, layer="net.a.weight", points=16)
    path = f"/runs/{bad_run}/series?layer=net.a.weight&column=l2&column=usual&points=16&last=512"
    norm, usual = service.json(path)["series"]

    assert (found["last"], found["nan"], found["usual"]) == (
        norm["last"],
        norm["nan"],
        usual["last"],
    )
    assert found["step"] == list(range(9))


def test_two_runs_are_compared_over_the_steps_of_both(service: Aggregator, bad_run: str) -> None:
    other = f"{bad_run}-well"
    send(service, service.peer(run=other).attach(LAYERS), 0, *[1.0] * 4)

    found = answered(service, "compare", run=bad_run, beside=other)

    assert found["last_common_step"] == 3
    assert [own["status"] for own in found["health"].values()] == ["critical", "healthy"]
    series = service.json(f"/runs/{other}/series?column=norm&from=0&to=3&points=16")["series"]
    assert found["curves"][other]["norm"] == series[0]["last"]
    assert found["curves"][bad_run]["step"] == found["curves"][other]["step"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("health", {"run": "nowhere"}, "no run 'nowhere'"),
        ("health", {"run": "../metrics"}, "nothing is at"),
        ("health", {}, "run"),
        ("runs", {"limit": 1_000}, "less than or equal to 100"),
        ("explain_alert", {"alert": "0000000000000000"}, "no alert"),
        ("delete", {}, "Unknown tool: delete"),
    ],
)
def test_what_is_wrong_is_said_in_words(
    service: Aggregator, name: str, arguments: dict[str, Any], says: str
) -> None:
    is_error, text = call(service, name, **arguments)

    assert is_error
    assert says in text
    assert "Traceback" not in text


def test_nothing_but_requests_of_the_protocol_is_answered(service: Aggregator) -> None:
    assert service.get("/mcp").status_code == 405
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    bodies = [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"jsonrpc": "2.0", "method": "x", "id": 1}',
        b"9" * 70_000,
    ]
    for body in bodies:
        with httpx2.Client() as client:
            answer = client.post(f"{service.url}/mcp", content=body, headers=headers)
        assert 400 <= answer.status_code < 500 or "error" in answer.json(), (body[:20], answer.text)
    assert service.get("/readyz").is_success


def test_the_read_token_holds(serve: Serve, tmp_path: Any) -> None:
    make_keys(tmp_path / "keys")
    tokens = read_keys(tmp_path / "keys").tokens
    service = serve("--keys-dir", str(tmp_path / "keys"))

    for token in (tokens.read, tokens.write):
        assert call(service, "runs", token) == (False, "[]")
    for headers in ({}, {"Authorization": "Bearer x"}):
        answer = httpx2.post(f"{service.url}/mcp", json={}, headers=headers)
        assert answer.status_code == 401
