"""The HTTP door: names, origins, sizes, tokens, streams and the marks on every answer."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import string
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from gradwatch_server.api import security
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import EventStream, make_app
from gradwatch_server.api.security import (
    MAX_BODY_BYTES,
    STREAM_TOKEN_S,
    AccessPolicy,
    Hosts,
    SecurityMiddleware,
    StreamLimit,
    StreamTokens,
)
from gradwatch_server.api.tls import check_tls
from gradwatch_server.keys import Tokens
from gradwatch_server.settings import Settings, load_settings, open_doors

READ, WRITE = "r" * 43, "w" * 43
HOME = "http://127.0.0.1:8420"
STREAM = "/alerts/stream"


class Clock:
    """The time that stream tokens see."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(security, "time", clock)
    return clock


@pytest.fixture
def make_client(start: Any) -> Iterator[Callable[..., TestClient]]:
    """The app behind its door: `make_client(tokens=..., bound=..., more=...)`."""
    made: list[TestClient] = []

    def make(
        tokens: Tokens | None = None, bound: str = "127.0.0.1", more: tuple[str, ...] = ()
    ) -> TestClient:
        running = start()
        feed = AlertStream(running.store)
        feed.close()  # streams end at once: this client reads an answer to its end
        stream_tokens = StreamTokens()
        app = make_app(running.engine, running.store, feed, stream_tokens)
        # What the routes with a body will be: there is none yet.
        app.add_api_route("/echo", _echo, methods=["POST", "DELETE"])
        guard = SecurityMiddleware(app, AccessPolicy(Hosts(bound, more), tokens, stream_tokens))
        made.append(TestClient(guard, base_url=HOME))
        made[-1].__enter__()
        return made[-1]

    yield make
    for client in made:
        client.__exit__(None, None, None)


async def _echo(body: dict[str, Any]) -> int:
    return len(body)


@pytest.fixture
def client(make_client: Any) -> TestClient:
    """A client of an app that asks for no tokens."""
    made: TestClient = make_client()
    return made


@pytest.fixture
def locked(make_client: Any) -> TestClient:
    """A client of one that does."""
    made: TestClient = make_client(Tokens(READ, WRITE))
    return made


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def problem(response: httpx.Response) -> tuple[int, str]:
    """Return status and detail of a problem document."""
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == response.status_code
    return response.status_code, response.json()["detail"]


# Names


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8420", "localhost", "LOCALHOST:1", "[::1]:8420", "127.8.8.8", "localhost."]
)
def test_this_machine_may_be_called_by_its_own_names(client: TestClient, host: str) -> None:
    """With or without a port."""
    assert client.get("/runs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8420", "", "10.0.0.1"),
        *("[::1", "a b", "evil@", "\xff", "2130706433", "user@evil.example"),
    ],
)
def test_a_strange_name_is_a_421(client: TestClient, host: str) -> None:
    """A page whose name was turned to us learns nothing, of a probe either."""
    for path in ("/runs", "/healthz"):
        status, detail = problem(client.get(path, headers={"Host": host.encode("latin-1")}))
        assert status == 421
        assert "http_hosts" in detail
        assert detail.isascii()


def test_the_host_must_be_given_once() -> None:
    """Two of them would leave it open who was meant."""
    for hosts in ([], ["localhost", "evil.example"]):
        scope = {"headers": [(b"host", host.encode()) for host in hosts]}
        guard = SecurityMiddleware(_nothing, AccessPolicy(Hosts("127.0.0.1"), None, StreamTokens()))
        refusal = guard._refusal({"type": "http", "method": "GET", "path": "/"} | scope)
        assert refusal is not None
        assert refusal.status_code == 421


async def _nothing(*_: object) -> None:
    """An app that answers nothing."""


def test_more_names_can_be_allowed(make_client: Any) -> None:
    """And the one it is bound to."""
    client = make_client(bound="node7", more=("Watch.example.org",))

    for host in ("node7:8420", "watch.example.org", "localhost"):
        assert client.get("/runs", headers={"Host": host}).status_code == 200
    assert client.get("/runs", headers={"Host": "10.0.0.1"}).status_code == 421


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_bound_to_all_addresses_any_address_will_do(make_client: Any, bound: str) -> None:
    """But no name: an address cannot be turned to somewhere else."""
    client = make_client(bound=bound)

    for host in ("10.0.0.1:8420", "[fe80::1]:8420", "localhost"):
        assert client.get("/runs", headers={"Host": host}).status_code == 200
    assert client.get("/runs", headers={"Host": "evil.example"}).status_code == 421


def test_a_strangers_page_may_change_nothing(client: TestClient) -> None:
    """Its visitor's browser sends the request, and says for whom."""
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", ""):
        response = client.post("/echo", json={}, headers={"Origin": origin})
        assert problem(response)[0] == 403
        assert client.get("/runs", headers={"Origin": origin}).status_code == 200
    assert client.post("/echo", json={}, headers={"Origin": HOME}).status_code == 200
    assert client.post("/echo", json={}).status_code == 200


# Sizes


def test_a_body_is_read_up_to_a_limit(client: TestClient) -> None:
    """One byte more is a 413, whether its length is said before or not."""
    fits = b'{"k":"' + b"x" * (MAX_BODY_BYTES - 8) + b'"}'
    headers = {"Content-Type": "application/json"}
    assert len(fits) == MAX_BODY_BYTES
    assert client.post("/echo", content=fits, headers=headers).status_code == 200
    for body in (fits + b" ", iter([fits, b" "]), itertools.repeat(b"x" * 999, 70)):
        status, detail = problem(client.post("/echo", content=body, headers=headers))
        assert (status, str(MAX_BODY_BYTES) in detail) == (413, True)


@pytest.mark.parametrize("length", ["65537", "9" * 30, "-1", "x", "²", ""])
def test_a_length_that_cannot_be_is_refused(client: TestClient, length: str) -> None:
    """Also where no body is read."""
    headers = {"Content-Length": length.encode("utf-8")}
    assert problem(client.get("/runs", headers=headers))[0] == 413


# Tokens


def test_without_tokens_anyone_on_this_machine_may_ask(client: TestClient) -> None:
    """A token shown is not looked at."""
    assert client.get("/runs").status_code == 200
    assert client.get("/runs", headers=bearer("x")).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_token(locked: TestClient, path: str) -> None:
    """They tell nothing of the runs."""
    assert locked.get(path).status_code == 200


CLOSED = [
    *("/runs", "/runs/x/health", "/metrics", "/openapi.json", STREAM, "/nothing", "/"),
    *("//healthz", "/healthz/", "/readyz/../runs", "/healthz%2f..%2fruns"),
]


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
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    for path in CLOSED:
        response = locked.get(path, headers=encoded)
        status, detail = problem(response)

        assert status == 401, path
        assert response.headers["www-authenticate"] == 'Bearer realm="gradwatch"'
        assert "Authorization: Bearer" in detail
        assert "GRADWATCH_TOKEN" in detail


def test_two_tokens_are_none(locked: TestClient) -> None:
    """It would be open which one counts."""
    given = [("Authorization", f"Bearer {token}") for token in (READ, WRITE)]

    assert locked.get("/runs", headers=given).status_code == 401


def test_the_read_token_reads(locked: TestClient) -> None:
    """However the scheme is spelled."""
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
    """It is the operator's."""
    assert locked.post("/echo", json={}, headers=bearer(WRITE)).status_code == 200
    assert locked.get("/runs", headers=bearer(WRITE)).status_code == 200


# Stream tokens


def stream_token(client: TestClient) -> str:
    response = client.post("/alerts/stream-token", headers=bearer(READ))
    assert response.status_code == 200
    document = response.json()
    assert document["expires_in_s"] == STREAM_TOKEN_S == 60
    return str(document["token"])


def test_a_stream_token_opens_a_stream_for_a_minute(locked: TestClient, clock: Clock) -> None:
    """The read token gets one; without it there is none."""
    assert locked.post("/alerts/stream-token").status_code == 401
    token = stream_token(locked)
    assert locked.get(STREAM, params={"token": token}).status_code == 200
    assert locked.get("/runs/x/alerts/stream", params={"token": token}).status_code == 404

    clock.now_s += STREAM_TOKEN_S - 0.1
    assert locked.get(STREAM, params={"token": token}).status_code == 200
    clock.now_s += 0.2
    assert locked.get(STREAM, params={"token": token}).status_code == 401


def test_a_stream_token_opens_nothing_else(locked: TestClient) -> None:
    """It lies in logs and histories: as a bearer token it is none either."""
    token = stream_token(locked)

    for path in ("/runs", "/alerts", "/alerts/stream-token", "/openapi.json"):
        assert locked.get(path, params={"token": token}).status_code == 401
    assert locked.post("/alerts/stream-token", params={"token": token}).status_code == 401
    assert locked.get(STREAM, headers=bearer(token)).status_code == 401


def test_the_lasting_tokens_are_no_use_in_a_url(locked: TestClient) -> None:
    """So that nobody gets used to writing them there."""
    for token in (READ, WRITE):
        assert locked.get(STREAM, params={"token": token}).status_code == 401
        assert locked.get("/runs", params={"token": token}).status_code == 401


def test_a_stream_token_cannot_be_forged(locked: TestClient) -> None:
    """Longer life, another signature, another process."""
    token = stream_token(locked)
    expiry, signature = token.split("-")
    forged = [
        f"{float(expiry) + 1:.3f}-{signature}",
        f"{expiry}-{'0' * len(signature)}",
        f"{expiry}-",
        f"-{signature}",
        f"inf-{signature}",
        StreamTokens().issue(),
        "",
        "é\x00",
        token + "0",
    ]
    for one in forged:
        assert locked.get(STREAM, params={"token": one}).status_code == 401, one
    assert locked.get(f"{STREAM}?token={token}&token={token}").status_code == 401
    assert set(token) <= set(string.hexdigits + ".-")


# Streams


def test_streams_are_limited_and_a_place_is_free_again() -> None:
    """One too many is a 503; when one ends, however it ends, there is a place."""

    async def scenario() -> None:
        slots, gate = StreamLimit(2), asyncio.Event()
        answers: list[int] = []

        async def events() -> AsyncIterator[str]:
            yield ":\n\n"
            await gate.wait()

        async def subscribe() -> None:
            async def receive() -> dict[str, Any]:
                await asyncio.sleep(60)
                raise AssertionError

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    answers.append(message["status"])

            scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
            await EventStream(events(), slots)(scope, receive, send)

        first, second = (asyncio.create_task(subscribe()) for _ in range(2))
        await asyncio.sleep(0.05)
        await subscribe()
        assert answers == [200, 200, 503]
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        third = asyncio.create_task(subscribe())
        await asyncio.sleep(0.05)
        assert answers == [200, 200, 503, 200]
        gate.set()
        await asyncio.gather(second, third)
        assert [slots.take() for _ in range(3)] == [True, True, False]

    asyncio.run(scenario())


# Marks


def test_every_answer_forbids_what_a_browser_might_do_with_it(make_client: Any) -> None:
    """Of routes, errors, refusals and streams alike."""
    client = make_client(Tokens(READ, WRITE))
    responses = [
        client.get("/healthz"),
        client.get("/runs", headers=bearer(READ)),
        client.get(STREAM, headers=bearer(READ)),
        client.get("/nothing", headers=bearer(READ)),
        client.get("/alerts?after=x", headers=bearer(READ)),
        client.get("/runs"),
        client.get("/runs", headers={"Host": "evil.example"}),
        client.post("/echo", content=b"x" * (MAX_BODY_BYTES + 1)),
    ]
    assert [response.status_code for response in responses] == [
        *(200, 200, 200, 404, 422, 401, 421, 413)
    ]
    for response in responses:
        headers = response.headers
        policy = headers["content-security-policy"]
        assert policy == "default-src 'none'; frame-ancestors 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


# Settings


def test_a_far_address_needs_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The refusal says how to make them; with a directory of them it is none."""
    monkeypatch.chdir(tmp_path)
    for far in ({"http": "0.0.0.0:8420"}, {"ingest": "tcp://0.0.0.0:5555"}):
        with pytest.raises(Exception, match=r"'gradwatch keys' and give --keys-dir gradwatch-keys"):
            load_settings(None, **far)
        assert load_settings(None, keys_dir=Path("keys"), **far).keys_dir == Path("keys")


def test_an_operator_is_warned_of_what_is_open() -> None:
    """Not of what is closed."""
    near = Settings()
    far = Settings(http="0.0.0.0:8420", ingest="tcp://0.0.0.0:5555", insecure=True)
    keys = far.model_copy(update={"keys_dir": Path("keys")})
    tls = keys.model_copy(update={"http_tls_cert": Path("c"), "http_tls_key": Path("k")})

    assert open_doors(near) == []
    assert [line.split(":")[0] for line in open_doors(far)] == ["insecure", "insecure"]
    assert [line.split(";")[0] for line in open_doors(keys)] == ["HTTP tokens travel in the clear"]
    assert open_doors(tls) == []


@pytest.mark.parametrize("given", ["cert", "key"])
def test_half_of_a_certificate_is_refused(tmp_path: Path, given: str) -> None:
    """It would serve without."""
    file = tmp_path / given
    pair = (file, None) if given == "cert" else (None, file)
    with pytest.raises(Exception, match="http_tls_cert and http_tls_key belong together"):
        check_tls(*pair)


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    """Missing, open to all, or something else."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def refusal() -> str:
        with pytest.raises(Exception, match="cannot use the certificate") as caught:
            check_tls(cert, key)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "No such file or directory" in refusal()
    cert.write_text("no certificate")
    key.write_text("no key")
    key.chmod(0o644)
    assert f"the key is open to all; run: chmod o= {key}" in refusal()
    key.chmod(0o640)
    assert str(cert) in refusal()
    check_tls(None, None)


def test_the_time_a_wrong_token_takes_does_not_tell_how_wrong_it_is(
    locked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are always compared, over digests of one length: counted, for time cannot be tested."""
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
