"""Access rules, by which a request is let in before a route sees it."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Scope

from gradwatch_server.api.problems import Problem
from gradwatch_server.api.security.hosts import SAFE_METHODS, Hosts, check_host, check_origin
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.keys import Tokens

PUBLIC_PATHS: Final = frozenset({"/healthz", "/readyz", "/"})
"""Paths that need no token, for probes, and the page: the answers tell nothing of the runs."""

PAGE_PREFIX: Final = "/static/"
"""Below it are the files of the page, which need no token either: they hold no data."""

STREAM_SUFFIX: Final = "/alerts/stream"
"""How the paths of alert streams end."""

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
