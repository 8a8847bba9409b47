"""The choice and the order of listed runs, and the place where a page of them ended."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from fastapi import HTTPException

from gradwatch_server.api.listing import Summary
from gradwatch_wire.health import Phase, Status

Order = Literal["heard", "worst", "name", "step"]

_STATUSES: Final = list(Status)


def _badness(own: Summary) -> tuple[Any, ...]:
    return own.has_ended, -_STATUSES.index(own.status), -own.key[0], own.key[1]


_KEYS: Final[Mapping[Order, Callable[[Summary], tuple[Any, ...]]]] = {
    "heard": lambda own: (-own.key[0], own.key[1]),
    "worst": _badness,
    "name": lambda own: (own.key[1],),
    "step": lambda own: (-own.step, own.key[1]),
}
"""Sort keys of the orders, the least first; no two runs have the same key."""

_KEY_TYPES: Final[Mapping[Order, tuple[type, ...]]] = {
    "heard": (int, str),
    "worst": (bool, int, int, str),
    "name": (str,),
    "step": (int, str),
}
"""Types of the parts of each order's key."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of runs, and their order.

    Args:
        q: Text that the name has in it, upper and lower case alike; None for all.
        status: The status; None for all.
        phase: The phase; None for all.
        sort: The order.
    """

    q: str | None = None
    status: Status | None = None
    phase: Phase | None = None
    sort: Order = "heard"

    def of(self, runs: Sequence[Summary]) -> tuple[Summary, ...]:
        """Return those of the runs, in order."""
        text = None if self.q is None else self.q.casefold()
        found = [
            own
            for own in runs
            if (text is None or text in own.key[1].casefold())
            and self.status in (None, own.status)
            and self.phase in (None, own.phase)
        ]
        return tuple(sorted(found, key=self.key))

    def key(self, own: Summary) -> tuple[Any, ...]:
        """Return by what a run comes."""
        return _KEYS[self.sort](own)


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
    if tuple(map(type, plain[1:])) != _KEY_TYPES[sort]:
        raise refused
    return tuple(plain[1:])
