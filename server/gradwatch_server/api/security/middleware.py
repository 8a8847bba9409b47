"""The ASGI middleware around the app: refuses requests, limits bodies, adds security headers.

It stands before the app and knows no routes but those that need no token.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradwatch_server.api.problems import Problem
from gradwatch_server.api.security.access import IS_HEAD, AccessPolicy

MAX_BODY_BYTES: Final = 65_536

RESPONSE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every answer that does not set its own."""


class SecurityMiddleware:
    """Passes on what the policy allows, and answers the rest with a problem document."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        app = self._refusal(scope) or self._app
        await app(_as_get(scope), exchange.receive, exchange.send)

    def _refusal(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        return (
            self._policy.check_caller(scope, headers)
            or _check_size(headers)
            or self._policy.check_token(scope, headers)
        )


def _as_get(scope: Scope) -> Scope:
    """Let what is asked for with HEAD be answered as by GET; uvicorn leaves out the body of it.

    A stream's answer has no end: it looks at `IS_HEAD`.
    """
    return {**scope, "method": "GET", IS_HEAD: True} if scope["method"] == "HEAD" else scope


def _check_size(headers: Headers) -> Problem | None:
    length = headers.get("content-length", "0")
    if length.isdecimal() and len(length) < 20 and int(length) <= MAX_BODY_BYTES:
        return None
    return Problem(413, f"a body of at most {MAX_BODY_BYTES} bytes is read")


class _Exchange:
    """One request and its answer: the body of the one is limited, the other gets our headers."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._size = 0
        self._has_begun = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size <= MAX_BODY_BYTES:
            return message
        if self._has_begun:  # too late for an error
            return {"type": "http.disconnect"}
        raise HTTPException(413, f"a body of at most {MAX_BODY_BYTES} bytes is read")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in RESPONSE_HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)
