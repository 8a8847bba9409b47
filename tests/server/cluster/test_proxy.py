"""Requests that are passed on: to the node that is meant, and as they came."""

from __future__ import annotations

import socket

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gradwatch_server.api.problems import Json
from gradwatch_server.cluster.http.proxy import Proxy
from tests.server.cluster.conftest import NewServer
from tests.support.waiting import PATIENCE_S


def passing_to(port: int) -> ASGIApp:
    """Return an app that passes all on to a port."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        proxy = Proxy("a")
        try:
            await proxy.pass_on(f"http://127.0.0.1:{port}", scope, receive, send)
        finally:
            await proxy.close()

    return app


async def tell(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with what came."""
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
    query = scope["query_string"].decode()
    answer = {"path": scope["raw_path"].decode(), "query": query, "headers": headers}
    await Json(answer)(scope, receive, send)


def ask(port: int, target: bytes, headers: bytes = b"") -> bytes:
    """Send a request with a target of any form; return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        lines = (b"GET " + target + b" HTTP/1.1", b"Host: x", b"Connection: close", headers)
        connection.sendall(b"\r\n".join(line for line in lines if line) + b"\r\n\r\n")
        with connection.makefile("rb") as answer:
            return answer.read()


@pytest.mark.parametrize("rest", [b"", b"@127.0.0.1:%d/health", b"http://127.0.0.1:%d/x"])
def test_a_target_that_is_no_path_leads_nowhere(serve: NewServer, rest: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        port = elsewhere.getsockname()[1]
        target = rest % port if b"%d" in rest else rest
        if not rest.startswith(b"http"):
            target = b"%2Fruns%2Fx" + target
        assert ask(serve(passing_to(serve(tell))), target).startswith(b"HTTP/1.1 400 ")
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


@pytest.mark.parametrize("path", [b"/runs/x%2Fy", b"//127.0.0.9/x", b"/@127.0.0.9:81/x"])
def test_a_path_reaches_the_node_as_it_came(serve: NewServer, path: bytes) -> None:
    answer = ask(serve(passing_to(serve(tell))), path + b"?a=%20b", b"Cookie: \xe9=\xff")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"path":"%s","query":"a=%%20b"' % path in answer
    assert rb'"cookie":"\u00e9=\u00ff"' in answer
