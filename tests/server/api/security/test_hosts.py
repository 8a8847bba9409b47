"""Under which names the API may be called, and which pages may change something."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from gradwatch_server.api.security.access import AccessPolicy, SecurityMiddleware
from gradwatch_server.api.security.hosts import Hosts
from gradwatch_server.api.security.stream_tokens import StreamTokens
from tests.support.problems import problem


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8420", "localhost", "LOCALHOST:1", "[::1]:8420", "127.8.8.8", "localhost."]
)
def test_this_machine_may_be_called_by_its_own_names(client: TestClient, host: str) -> None:
    assert client.get("/runs", headers={"Host": host}).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8420", "", "10.0.0.1"),
        *("[::1", "a b", "evil@", "\xff", "2130706433", "user@evil.example"),
    ],
)
def test_a_strange_name_is_a_421(client: TestClient, host: str) -> None:
    """A page whose name resolves to us learns nothing, not by a probe either."""
    for path in ("/runs", "/healthz"):
        status, detail = problem(client.get(path, headers={b"Host": host.encode("latin-1")}))
        assert status == 421
        assert "http_hosts" in detail
        assert detail.isascii()


def test_the_host_must_be_given_once() -> None:
    for hosts in ([], ["localhost", "evil.example"]):
        scope = {"headers": [(b"host", host.encode()) for host in hosts]}
        policy = AccessPolicy(Hosts("127.0.0.1"), None, StreamTokens())
        middleware = SecurityMiddleware(_nothing, policy)
        refusal = middleware._refusal({"type": "http", "method": "GET", "path": "/"} | scope)
        assert refusal is not None
        assert refusal.status_code == 421


async def _nothing(*_: object) -> None:
    """An app that answers nothing."""


def test_more_names_can_be_allowed(make_client: Callable[..., TestClient]) -> None:
    client = make_client(bound="node7", more=("Watch.example.org",))

    for host in ("node7:8420", "watch.example.org", "localhost"):
        assert client.get("/runs", headers={"Host": host}).status_code == 200
    assert client.get("/runs", headers={"Host": "10.0.0.1"}).status_code == 421


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_bound_to_all_addresses_any_address_will_do(
    make_client: Callable[..., TestClient], bound: str
) -> None:
    client = make_client(bound=bound)

    for host in ("10.0.0.1:8420", "[fe80::1]:8420", "localhost"):
        assert client.get("/runs", headers={"Host": host}).status_code == 200
    assert client.get("/runs", headers={"Host": "evil.example"}).status_code == 421


def test_a_strangers_page_may_change_nothing(client: TestClient) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", ""):
        response = client.post("/echo", json={}, headers={"Origin": origin})
        assert problem(response)[0] == 403
        assert client.get("/runs", headers={"Origin": origin}).status_code == 200
    own = {"Origin": str(client.base_url)}
    assert client.post("/echo", json={}, headers=own).status_code == 200
    assert client.post("/echo", json={}).status_code == 200


def test_a_page_of_another_port_is_a_strangers(make_client: Callable[..., TestClient]) -> None:
    """S46: another service of this machine is another origin, also to a browser."""
    client = make_client(more=("gradwatch.example.org",))
    for origin in ("http://127.0.0.1:9999", "http://localhost:8420", "http://127.0.0.1"):
        response = client.post("/echo", json={}, headers={"Origin": origin})
        assert problem(response)[0] == 403
    other = {"Origin": "https://gradwatch.example.org:3000"}
    assert problem(client.post("/echo", json={}, headers=other))[0] == 403


def test_behind_a_proxy_the_origin_is_its_name(make_client: Callable[..., TestClient]) -> None:
    """Whether the proxy passes on the `Host` that it was asked by or sends one of its own."""
    client = make_client(more=("gradwatch.example.org",))
    origin = {"Origin": "https://gradwatch.example.org"}
    for host in ("gradwatch.example.org", "127.0.0.1:8420"):
        response = client.post("/echo", json={}, headers={**origin, "Host": host})
        assert response.status_code == 200
