"""The place where a page of runs ended, as a text for the URL."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from fastapi import HTTPException

from gradwatch_server.api.listing import Summary
from gradwatch_server.api.run_rows import KEY_TYPES, Choice, Order


def cursor_of(sort: Order, last: Summary) -> str:
    """Return the cursor of the page after one that ends with a run."""
    plain = json.dumps([sort, *Choice(sort=sort).key(last)], separators=(",", ":"))
    return base64.urlsafe_b64encode(plain.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def parse_cursor(given: str, sort: Order) -> tuple[Any, ...]:
    """Return the key of the last run of the page before.

    Raises:
        HTTPException: 422, if it is none, or of another order.
    """
    refused = HTTPException(
        422,
        f"query cursor: the one of a Link header of sort={sort}, got {given[:80]!a}; "
        "leave it out for the first page",
    )
    try:
        data = base64.b64decode(given + "=" * (-len(given) % 4), b"-_", validate=True)
        plain = json.loads(data)
    except (binascii.Error, ValueError, RecursionError) as error:
        raise refused from error
    if not isinstance(plain, list) or plain[:1] != [sort]:
        raise refused
    if tuple(map(type, plain[1:])) != KEY_TYPES[sort]:
        raise refused
    return tuple(plain[1:])
