"""The read token and the write token: what each opens, and what needs none."""

from __future__ import annotations

import hmac
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from gradwatch_server.keys import Tokens
from tests.support.problems import problem

READ, WRITE = "r" * 43, "w" * 43


@pytest.fixture
def locked(make_client: Callable[..., TestClient]) -> TestClient:
    """A client of an app that asks for these tokens."""
    made: TestClient = make_client(Tokens(READ, WRITE))
    return made


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_without_tokens_anyone_on_this_machine_may_ask(client: TestClient) -> None:
    """A token shown is not looked at."""
    assert client.get("/runs").status_code == 200
    assert client.get("/runs", headers=bearer("x")).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/"])
def test_probes_need_no_token(locked: TestClient, path: str) -> None:
    assert locked.get(path).status_code == 200


CLOSED = [
    *("/runs", "/runs/x/health", "/metrics", "/openapi.json", "/alerts/stream", "/nothing"),
    *("/static", "/%2fhealthz", "/healthz/", "/readyz/../runs", "/healthz%2f..%2fruns"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("x"),
        bearer(READ[:-1]),
        bearer(READ + "r"),
        bearer(READ.upper()),
        bearer("\xe9"),
        {"Authorization": READ},
        {"Authorization": f"Basic {READ}"},
        {"Authorization": f"Bearer  {READ}"},
        {"Cookie": f"token={READ}"},
        {"X-Forwarded-For": "127.0.0.1"},
    ],
)
def test_everything_else_does(locked: TestClient, headers: dict[str, str]) -> None:
    """A 401 that says how, whether there is such a route or not."""
    encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    for path in CLOSED:
        response = locked.get(path, headers=encoded)
        status, detail = problem(response)

        assert status == 401, path
        assert response.headers["www-authenticate"] == 'Bearer realm="gradwatch"'
        assert "Authorization: Bearer" in detail
        assert "GRADWATCH_TOKEN" in detail


def test_two_tokens_are_none(locked: TestClient) -> None:
    given = [("Authorization", f"Bearer {token}") for token in (READ, WRITE)]

    assert locked.get("/runs", headers=given).status_code == 401


def test_the_read_token_reads(locked: TestClient) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} {READ}"}
        assert locked.get("/runs", headers=headers).status_code == 200
        assert locked.get("/runs/nope", headers=headers).status_code == 404


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "BREW"])
def test_the_read_token_changes_nothing(locked: TestClient, method: str) -> None:
    """A 403: it is known, and not enough."""
    response = locked.request(method, "/echo", json={}, headers=bearer(READ))

    assert problem(response) == (403, "this needs the write token, and the read token was given")


def test_the_write_token_does_both(locked: TestClient) -> None:
    assert locked.post("/echo", json={}, headers=bearer(WRITE)).status_code == 200
    assert locked.get("/runs", headers=bearer(WRITE)).status_code == 200


def test_the_time_a_wrong_token_takes_does_not_tell_how_wrong_it_is(
    locked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def count(a: bytes, b: bytes) -> bool:
        calls.append((len(a), len(b)))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", count)
    for token in (READ, WRITE, "", "x" * 9999, READ[:-1] + "x"):
        calls.clear()
        locked.get("/runs", headers=bearer(token))
        assert calls == [(32, 32), (32, 32)]
