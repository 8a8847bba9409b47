"""Access rules, and the ASGI middleware that lets a request in before a route sees it.

The middleware limits bodies, adds security headers, and knows no routes but those without a token.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradwatch_server.api.problems import Problem
from gradwatch_server.api.security.hosts import SAFE_METHODS, Hosts, check_host, check_origin
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.keys import Tokens

PUBLIC_PATHS: Final = frozenset({"/healthz", "/readyz", "/"})
"""Paths that need no token, for probes, and the page: the answers tell nothing of the runs."""

PAGE_PREFIX: Final = "/static/"
"""Below it are the files of the page, which need no token either: they hold no data."""

STREAM_SUFFIX: Final = "/alerts/stream"
"""End of the paths of alert streams."""

IS_HEAD: Final = "gradwatch.is_head"
"""Key in a scope whose request was made with HEAD: only the header of the answer is wanted."""

STREAM_TOKEN_PATH: Final = "/alerts/stream-token"  # noqa: S105 - a path
MCP_PATH: Final = "/mcp"

READING_POSTS: Final = frozenset({STREAM_TOKEN_PATH, MCP_PATH})
"""Paths of POSTs that the read token may make: these change nothing."""


class Access(IntEnum):
    """Scope of a token."""

    NONE = 0
    READ = 1
    WRITE = 2


def access_of(tokens: Tokens, headers: Headers) -> Access:
    """Return what the bearer token of a request allows; nothing without exactly one."""
    given = headers.getlist("authorization")
    if len(given) != 1:
        return Access.NONE
    scheme, _, token = given[0].partition(" ")
    if scheme.lower() != "bearer":
        return Access.NONE
    # Always both, and as digests, so that the time taken reveals nothing.
    is_write, is_read = _equal(token, tokens.write), _equal(token, tokens.read)
    return Access.WRITE if is_write else Access.READ if is_read else Access.NONE


def _equal(given: str, expected: str) -> bool:
    digests = (hashlib.sha256(text.encode("latin-1")).digest() for text in (given, expected))
    return hmac.compare_digest(*digests)


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Holders of access.

    Args:
        tokens: The tokens; None if anyone may ask.
    """

    hosts: Hosts
    tokens: Tokens | None
    stream_tokens: StreamTokens

    def check_caller(self, scope: Scope, headers: Headers) -> Problem | None:
        """Refuse a request under a name that is not ours, or made by the page of another site."""
        return check_host(self.hosts, headers) or check_origin(self.hosts, scope["method"], headers)

    def check_token(self, scope: Scope, headers: Headers) -> Problem | None:
        """Refuse a request whose token does not allow it."""
        path, method = scope["path"], scope["method"]
        if self.tokens is None or _is_public(path) or self._has_stream_token(scope):
            return None
        access = access_of(self.tokens, headers)
        if access is Access.NONE:
            return _token_wanted()
        if access is Access.READ and method not in SAFE_METHODS and path not in READING_POSTS:
            return Problem(403, "this needs the write token, and the read token was given")
        return None

    def _has_stream_token(self, scope: Scope) -> bool:
        if scope["method"] not in ("GET", "HEAD") or not scope["path"].endswith(STREAM_SUFFIX):
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return len(given) == 1 and self.stream_tokens.is_valid(given[0])


def _is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PAGE_PREFIX)


def _token_wanted() -> Problem:
    problem = Problem(
        401,
        "this needs a token: send the header 'Authorization: Bearer TOKEN'; "
        "for the commands set GRADWATCH_TOKEN",
    )
    problem.headers["WWW-Authenticate"] = 'Bearer realm="gradwatch"'
    return problem


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
