"""Requests that another node answers: passed on as they come, their answers as they come back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from typing import Final

import httpx
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gradwatch_server.api.problems import Problem
from gradwatch_server.api.security.access import IS_HEAD

logger = logging.getLogger(__name__)

FORWARDED: Final = "gradwatch-forwarded"
"""Header of what another node passed on: it is not passed on again."""

CONNECT_S: Final = 2.0
ANSWER_S: Final = 60.0
"""How long a node may take to begin its answer; streams say something every 15 s."""

OWN_S: Final = 5.0
"""How long a node may take to answer what we ask by ourselves."""

NOT_PASSED: Final = frozenset(
    # Those of one connection (RFC 9110), and of who calls: the first node has judged that.
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade", "host", "origin",
    }
)  # fmt: skip

EVENTS: Final = "text/event-stream"


class Proxy:
    """Passes requests on to other nodes.

    Args:
        node: Id of this one.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    async def get(self, url: str, token: str | None) -> httpx.Response:
        """Ask a node for something by ourselves.

        Raises:
            httpx.HTTPError: If it does not answer.
        """
        headers = {FORWARDED: self._node}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return await self._client.get(url, headers=headers, timeout=OWN_S)

    async def pass_on(self, base: str, scope: Scope, receive: Receive, send: Send) -> bool:
        """Have the node at *base* answer a request; return False if it does not."""
        try:
            request = self._client.build_request(
                "HEAD" if scope.get(IS_HEAD) else scope["method"],
                _url(base, scope),
                headers=self._passed(scope["headers"]),
                content=_body(receive) if scope["method"] not in ("GET", "HEAD") else None,
            )
        except (httpx.InvalidURL, ValueError):
            await Problem(400, "the request target is no path: it begins with /")(
                scope, receive, send
            )
            return True
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            logger.debug("the node at %s does not answer: %s", base, repr(error))
            return False
        response = _response(answer)
        try:
            await response(scope, receive, send)
        except httpx.HTTPError as error:
            # What was begun cannot be completed: the connection ends, as the one to the owner did.
            logger.debug("an answer of %s broke off: %s", base, repr(error))
        finally:
            await answer.aclose()
        return True

    def _passed(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        # As bytes: values need not be ASCII, cookies for one.
        kept = [own for own in headers if own[0].decode("latin-1") not in NOT_PASSED]
        return [*kept, (FORWARDED.encode(), self._node.encode())]

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()


def _url(base: str, scope: Scope) -> httpx.URL:
    """Return where the node at *base* is asked for the target of a request.

    Raises:
        ValueError: If the target is no path. One such as `%2Fruns%2Fx@elsewhere`, which reads as a
            path once it is unquoted, would name another host if it were put behind *base*.
        httpx.InvalidURL: If it cannot be a path.
    """
    path, query = scope["raw_path"], scope["query_string"]
    if not path.startswith(b"/"):
        raise ValueError(path)
    url = httpx.URL(base)
    target = url.raw_path.rstrip(b"/") + path
    return url.copy_with(raw_path=target + b"?" + query if query else target)


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


def _response(answer: httpx.Response) -> StreamingResponse:
    """Return the answer of another node as ours."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    response = StreamingResponse(answer.aiter_raw(), answer.status_code, media_type=kind or None)
    response.raw_headers = [
        (name.lower(), value)
        for name, value in answer.headers.raw
        if name.lower().decode("latin-1") not in NOT_PASSED
    ]
    return response
