"""The one way to wait in a test: until a condition holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import httpx

PATIENCE_S: Final = 120.0
"""How long a test waits for what must happen: much longer than it takes on a busy machine."""

POLL_S: Final = 0.01

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], what: str = "the condition", timeout_s: float = PATIENCE_S
) -> T:
    """Return what *condition* gives once that is true.

    A 404 that *condition* raises means "not yet": what was acknowledged is committed, and is
    published a moment later.

    Raises:
        AssertionError: If it does not come true in time; *what* says what was waited for.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := _unless_absent(condition)):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(POLL_S)
    return value


def _unless_absent(condition: Callable[[], T]) -> T | None:
    try:
        return condition()
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.NOT_FOUND:
            raise
        return None
