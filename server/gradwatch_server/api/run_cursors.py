"""Where a page of runs ended, and up to where somebody knows all of them: texts for the URL."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, Final

from fastapi import HTTPException

from gradwatch_server.api.run_rows import KEY_TYPES, AnyListed, Choice, Listed, Order
from gradwatch_server.api.summaries import Listing

BEGIN: Final = "0"
"""What somebody gives as `since` who knows nothing yet."""


def cursor_of(sort: Order, last: Listed) -> str:
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


def mark_of(boot: str, listing: Listing[AnyListed]) -> str:
    """Return the `since` of who has this listing."""
    return f"{boot}.{listing.number}"


def parse_mark(given: str, boot: str, listing: Listing[AnyListed]) -> int | None:
    """Return the number of the listing that somebody has; None if all is new to them.

    Raises:
        HTTPException: 422, if it was not given out.
    """
    of_boot, _, digits = given.partition(".")
    is_number = digits.isascii() and digits.isdigit() and len(digits) < 18
    is_boot = len(of_boot) == len(boot) and not set(of_boot) - set("0123456789abcdef")
    if given != BEGIN and not (is_boot and is_number):
        raise _unknown(given)
    if given == BEGIN or of_boot != boot:
        return None
    number = int(digits)
    if number > listing.number:
        raise _unknown(given)
    return number if number >= listing.forgotten else None


def _unknown(given: str) -> HTTPException:
    detail = f"query since: what the answer before gave as `since`, or {BEGIN}, got {given[:80]!a}"
    return HTTPException(422, detail)


def gone_of(
    listing: Listing[AnyListed],
    number: int,
    changed: Sequence[AnyListed],
    found: Sequence[AnyListed],
) -> list[str]:
    """Return the names that somebody may have who knows a listing, and that are not wanted now."""
    kept = {own.key[1] for own in found}
    left = [name for name, at in listing.gone.items() if at > number]
    return sorted({*left, *(own.key[1] for own in changed)} - kept)
