"""The threads that open and end partitions, which a database that hangs may hold for ever."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn

logger = logging.getLogger(__name__)

THREADS: Final = 4
"""Partitions that are opened at once, and that are ended at once."""

END_S: Final = 5.0
"""How long the end of the process waits for them."""


class Workers:
    """Two pools: what is ended does not wait behind all that is opened."""

    def __init__(self) -> None:
        self.opening = ThreadPoolExecutor(THREADS, "gradwatch-partition")
        self.ending = ThreadPoolExecutor(THREADS, "gradwatch-partition-end")
        self.do_hang = False
        """Whether some were still at it when the end had waited long enough."""

    def shut_down(self) -> None:
        """Let them do what they were given, or give up on it after `END_S`."""
        until_s = time.monotonic() + END_S
        for pool in (self.ending, self.opening):
            waiting = threading.Thread(target=pool.shutdown, daemon=True)
            waiting.start()
            waiting.join(max(until_s - time.monotonic(), 0.0))
            if waiting.is_alive():
                self.do_hang = True
                pool.shutdown(wait=False, cancel_futures=True)


def leave() -> NoReturn:
    """End the process although threads wait for PostgreSQL, which Python would wait for."""
    logger.error("not all was saved, as PostgreSQL hangs: the next owners read it from the log")
    logging.shutdown()
    os._exit(1)
