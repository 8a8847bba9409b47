"""Waiting at the start for what may start at the same time: NATS, JetStream and PostgreSQL."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.errors import UnreachableError
from gradwatch_server.nats.stream import MissingError
from gradwatch_server.storage.store import StorageError, StorageFault

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 60.0
"""How long the start waits for each of them."""

PAUSE_S: Final = 0.2

_REFUSALS: Final = (
    "does not exist",
    "no pg_hba.conf entry",
)
"""What PostgreSQL says to whom it will not let in later either, where it asks for no password:
libpq gives no code with it. In another language it is told after the time is over."""

T = TypeVar("T")


def patiently(make: Callable[[], T]) -> T:
    """Return what *make* returns once what it needs answers.

    Raises:
        GradwatchError: If it does not answer in time, or anything else is wrong.
    """
    until_s, is_told = time.monotonic() + PATIENCE_S, False
    while True:
        try:
            return make()
        except GradwatchError as error:
            if not _may_pass(error) or time.monotonic() > until_s:
                raise
            if not is_told:
                logger.warning("waiting up to %.0f s: %s", PATIENCE_S, error)
            is_told = True
            time.sleep(PAUSE_S)


def _may_pass(error: GradwatchError) -> bool:
    """Tell whether the same call may succeed soon."""
    if isinstance(error, StorageError):
        is_refused = any(each in str(error) for each in _REFUSALS)
        return error.fault in (StorageFault.FAILED, StorageFault.BUSY) and not is_refused
    # One is missing also while another node that starts purges what was before what it wrote.
    return isinstance(error, UnreachableError | MissingError)
