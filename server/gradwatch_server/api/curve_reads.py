"""Reads of curves from the disk: a few at a time, so that curious readers take ingest no time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool

RETRY_AFTER_S: Final = 1

MAX_READING: Final = 2
"""Reads at once: each takes a core while it is made, which ingest needs too."""

MAX_WAITING: Final = 64
"""Reads that wait: at some 30 ms each the last one waits for a second."""

T = TypeVar("T")


class CurveReads:
    """Reading in threads, for one event loop; who comes when all are busy waits."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_READING)
        self._num_waiting = 0

    async def run(self, read: Callable[[], T]) -> T:
        """Return what is read in a thread, as soon as one is free."""
        if self._free.locked() and self._num_waiting >= MAX_WAITING:
            detail = f"{self._num_waiting} others wait for curves already; ask again in a while"
            raise HTTPException(503, detail, {"Retry-After": str(RETRY_AFTER_S)})
        self._num_waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._num_waiting -= 1
        # A thread cannot be stopped: where its reader has gone, its place is free once it is done.
        return await asyncio.shield(asyncio.ensure_future(self._read(read)))

    async def _read(self, read: Callable[[], T]) -> T:
        try:
            return await run_in_threadpool(read)
        finally:
            self._free.release()
