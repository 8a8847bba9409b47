"""The door of the HTTP side: whom a request must name, how large it may be, who may ask.

It stands before the app and knows no routes but those that need no token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradwatch_server.addresses import is_loopback
from gradwatch_server.api.problems import Problem
from gradwatch_server.keys import Tokens

MAX_BODY_BYTES: Final = 65_536
MAX_STREAMS: Final = 256
STREAM_TOKEN_S: Final = 60

OPEN: Final = frozenset({"/healthz", "/readyz"})
"""What a probe asks, and what tells nothing of the runs."""

STREAM: Final = "/alerts/stream"
STREAM_TOKEN: Final = "/alerts/stream-token"  # noqa: S105 - a path
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

RESPONSE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every answer that does not set its own."""


class Access(IntEnum):
    """What a request may do."""

    NONE = 0
    READ = 1
    WRITE = 2


class Hosts:
    """The names under which the API may be called.

    A page of a stranger can make its own name lead to us and then read what we answer to its
    visitor's browser (DNS rebinding), but the browser says that name. An address cannot be turned.
    """

    def __init__(self, bound: str, more: Iterable[str] = ()) -> None:
        self._names = {bound.lower(), *(name.lower() for name in more)}
        self._any_address = bound in ("0.0.0.0", "::")  # noqa: S104 - a comparison

    def allows(self, authority: str) -> bool:
        """Tell whether `host` or `host:port` is one of ours."""
        try:
            host = urlsplit(f"//{authority}").hostname or ""
        except ValueError:
            return False
        host = host.removesuffix(".")
        if host in self._names or is_loopback(host):
            return True
        return self._any_address and _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class StreamTokens:
    """Tokens that open an alert stream, for browsers: an `EventSource` cannot send a header.

    They are signed, not stored, and good for this process only.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(32)

    def issue(self) -> str:
        """Return a token that is good for `STREAM_TOKEN_S`."""
        expiry = f"{time.monotonic() + STREAM_TOKEN_S:.3f}"
        return f"{expiry}-{self._sign(expiry)}"

    def is_valid(self, token: str) -> bool:
        """Tell whether a token is ours and not too old."""
        expiry, _, signature = token.rpartition("-")
        # The signature first: only then is the rest ours.
        genuine = hmac.compare_digest(self._sign(expiry).encode(), signature.encode())
        return genuine and time.monotonic() < float(expiry)

    def _sign(self, text: str) -> str:
        message = text.encode("utf-8", "surrogatepass")
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()


class StreamLimit:
    """A number of places."""

    def __init__(self, number: int) -> None:
        self._free = number

    def take(self) -> bool:
        """Take a place; return False if there is none."""
        if not self._free:
            return False
        self._free -= 1
        return True

    def free(self) -> None:
        """Give a place back."""
        self._free += 1


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Who may ask.

    Args:
        hosts: The names under which the API may be called.
        tokens: The tokens; None if anyone may ask.
        stream_tokens: Makes and checks those of streams.
    """

    hosts: Hosts
    tokens: Tokens | None
    stream_tokens: StreamTokens


class SecurityMiddleware:
    """An ASGI app around the app: refuses what must not come in, and marks what goes out."""

    def __init__(self, app: ASGIApp, locks: AccessPolicy) -> None:
        self._app = app
        self._locks = locks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        app = self._refusal(scope) or self._app
        await app(scope, exchange.receive, exchange.send)

    def _refusal(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        return (
            self._check_host(headers)
            or self._check_origin(scope, headers)
            or _check_size(headers)
            or self._check_access(scope, headers)
        )

    def _check_host(self, headers: Headers) -> Problem | None:
        given = headers.getlist("host")
        if len(given) == 1 and self._locks.hosts.allows(given[0]):
            return None
        shown = f"{given[0][:80]!a}" if given else "none"
        return Problem(421, f"this is no host of ours: {shown}; if it is, name it in http_hosts")

    def _check_origin(self, scope: Scope, headers: Headers) -> Problem | None:
        """Refuse changes that a page of a stranger makes its visitor's browser ask for."""
        origin = headers.get("origin")
        if scope["method"] in READING or origin is None:
            return None
        if self._locks.hosts.allows(origin.partition("://")[2]):
            return None
        return Problem(403, f"pages of {origin[:80]!a} may change nothing here")

    def _check_access(self, scope: Scope, headers: Headers) -> Problem | None:
        tokens = self._locks.tokens
        path, method = scope["path"], scope["method"]
        if tokens is None or path in OPEN or self._has_stream_token(scope):
            return None
        access = _access(tokens, headers)
        if access is Access.NONE:
            problem = Problem(
                401,
                "this needs a token: send the header 'Authorization: Bearer TOKEN'; "
                "for the commands set GRADWATCH_TOKEN",
            )
            problem.headers["WWW-Authenticate"] = 'Bearer realm="gradwatch"'
            return problem
        if access is Access.READ and method not in READING and path != STREAM_TOKEN:
            return Problem(403, "this needs the write token, and the read token was given")
        return None

    def _has_stream_token(self, scope: Scope) -> bool:
        if scope["method"] != "GET" or not scope["path"].endswith(STREAM):
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return len(given) == 1 and self._locks.stream_tokens.is_valid(given[0])


def _check_size(headers: Headers) -> Problem | None:
    length = headers.get("content-length", "0")
    if length.isdecimal() and len(length) < 20 and int(length) <= MAX_BODY_BYTES:
        return None
    return Problem(413, f"a body of at most {MAX_BODY_BYTES} bytes is read")


def _access(tokens: Tokens, headers: Headers) -> Access:
    given = headers.getlist("authorization")
    if len(given) != 1:
        return Access.NONE
    scheme, _, token = given[0].partition(" ")
    if scheme.lower() != "bearer":
        return Access.NONE
    # Both always, and over digests: the time tells neither which nor how much of it was right.
    is_write, is_read = _equal(token, tokens.write), _equal(token, tokens.read)
    return Access.WRITE if is_write else Access.READ if is_read else Access.NONE


def _equal(given: str, expected: str) -> bool:
    digests = (hashlib.sha256(text.encode("latin-1")).digest() for text in (given, expected))
    return hmac.compare_digest(*digests)


class _Exchange:
    """One request and its answer: the one is bounded, the other marked."""

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
