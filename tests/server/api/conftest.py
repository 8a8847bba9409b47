"""The app with its middleware, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import ApiParts, make_app
from gradwatch_server.api.security.access import AccessPolicy, SecurityMiddleware
from gradwatch_server.api.security.hosts import Hosts
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.keys import Tokens
from tests.support.engine import Start

TOKENS = Tokens(read="r" * 43, write="w" * 43)
HOME = "http://127.0.0.1:8420"


class Clock:
    """The time that stream tokens see; it stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_client(start: Start, clock: Clock) -> Iterator[Callable[..., TestClient]]:
    """The app with its middleware: `make_client(tokens=..., bound=..., more=...)`."""
    made: list[TestClient] = []

    def make(
        tokens: Tokens | None = None, bound: str = "127.0.0.1", more: tuple[str, ...] = ()
    ) -> TestClient:
        running = start()
        alert_stream = AlertStream(running.store.alert_events)
        alert_stream.close()  # streams end at once: this client reads an answer to its end
        stream_tokens = StreamTokens(clock)
        parts = ApiParts(stream_tokens=stream_tokens)
        app = make_app(running.engine, running.store.alert_events, alert_stream, parts)
        # What the routes with a body will be: there is none yet.
        app.add_api_route("/echo", _echo, methods=["POST", "DELETE"])
        policy = AccessPolicy(Hosts(bound, more), tokens, stream_tokens)
        made.append(TestClient(SecurityMiddleware(app, policy), base_url=HOME))
        made[-1].__enter__()
        return made[-1]

    yield make
    for client in made:
        client.__exit__(None, None, None)


async def _echo(body: dict[str, Any]) -> int:
    return len(body)


@pytest.fixture
def client(make_client: Callable[..., TestClient]) -> TestClient:
    """A client of an app that asks for no tokens."""
    made: TestClient = make_client()
    return made


@pytest.fixture
def locked(make_client: Callable[..., TestClient]) -> TestClient:
    """A client of an app that asks for tokens."""
    made: TestClient = make_client(TOKENS)
    return made


@pytest.fixture
def reader() -> dict[str, str]:
    """The headers of one who has the read token."""
    return {"Authorization": f"Bearer {TOKENS.read}"}
