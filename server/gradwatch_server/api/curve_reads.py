"""Reads of curves from the disk: a few at a time, so that curious readers take ingest no time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool

from gradwatch_server.budget_use import BudgetUse

RETRY_AFTER_S: Final = 1

T = TypeVar("T")


class CurveReads:
    """Has threads read, for one event loop; who comes when all are busy waits.

    Args:
        use: How many read and wait at most, and where it is noted how many do.
    """

    def __init__(self, use: BudgetUse) -> None:
        self._reading, self._waiting = use["curve_reads"], use["curve_reads_waiting"]
        self._most_waiting = use.limits.curve_reads_waiting
        self._free = asyncio.Semaphore(use.limits.curve_reads)
        self._num_reading = self._num_waiting = 0

    async def run(self, read: Callable[[], T]) -> T:
        """Return what is read in a thread, as soon as one is free.

        Raises:
            HTTPException: 503 with Retry-After, if too many wait already.
        """
        if self._free.locked() and self._num_waiting >= self._most_waiting:
            self._waiting.num_refused += 1
            detail = f"{self._num_waiting} others wait for curves already; ask again in a while"
            raise HTTPException(503, detail, {"Retry-After": str(RETRY_AFTER_S)})
        self._note(waiting=1)
        try:
            await self._free.acquire()
        finally:
            self._note(waiting=-1)
        # A thread cannot be stopped: where its reader has gone, its place is free once it is done.
        return await asyncio.shield(asyncio.ensure_future(self._read(read)))

    async def _read(self, read: Callable[[], T]) -> T:
        self._note(reading=1)
        try:
            return await run_in_threadpool(read)
        finally:
            self._note(reading=-1)
            self._free.release()

    def _note(self, reading: int = 0, waiting: int = 0) -> None:
        self._num_reading += reading
        self._num_waiting += waiting
        self._reading.used, self._waiting.used = self._num_reading, self._num_waiting
