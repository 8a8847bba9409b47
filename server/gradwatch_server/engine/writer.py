"""Writing that outlives a full disk: again and again, while readers are told why nothing moves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from gradwatch_server.engine.published import PublishedState
from gradwatch_server.storage.store import StorageError, StorageFault

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.5


T = TypeVar("T")


def retry_write(
    write: Callable[[], T],
    published: PublishedState,
    stopping: threading.Event,
    on_fault: Callable[[], None],
    wait: Callable[[float, threading.Event], object],
) -> T | None:
    """Write, and try again while the store cannot; return its result, None if stopped before.

    Args:
        write: What is to be done.
        published: Where the fault is shown while it lasts.
        stopping: Ends the attempts.
        on_fault: Called once when the first attempt failed.
        wait: Called between attempts, with the seconds until the next and what ends the wait.

    Raises:
        StorageError: If the store is gone, which no waiting mends.
    """
    while True:
        try:
            written = write()
        except StorageError as error:
            if error.fault is StorageFault.GONE:
                raise
            if published.fault is None:
                logger.error("the log cannot be written, nothing is acknowledged: %s", error)
                on_fault()
            published.fault = f"the log cannot be written: {error}"
            wait(RETRY_S, stopping)
            if stopping.is_set():
                return None
        else:
            if published.fault is not None:
                logger.warning("the log can be written again")
                published.fault = None
            return written
