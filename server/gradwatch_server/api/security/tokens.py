"""Bearer tokens: what a request may do by the one it shows."""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum

from starlette.datastructures import Headers

from gradwatch_server.keys import Tokens


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
