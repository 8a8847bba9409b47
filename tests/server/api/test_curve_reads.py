"""Reads from the disk: a few at once, some that wait, and no more."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fastapi import HTTPException

from gradwatch_server.api.curve_reads import CurveReads
from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.budgets import Budgets


def test_a_few_read_at_once_and_the_next_one_is_told_when_to_come_back() -> None:
    """Who waits gets their turn; who is one too many gets a 503."""
    use = BudgetUse(Budgets(curve_reads=2, curve_reads_waiting=3))
    may_go, began = threading.Event(), threading.Semaphore(0)

    def read() -> int:
        began.release()
        may_go.wait()
        return 7

    async def scenario() -> list[Any]:
        reads = CurveReads(use)
        running = [asyncio.ensure_future(reads.run(read)) for _ in range(5)]
        for _ in range(2):
            await asyncio.to_thread(began.acquire)
        assert (use["curve_reads"].used, use["curve_reads_waiting"].used) == (2, 3)
        with pytest.raises(HTTPException, match="3 others wait") as refused:
            await reads.run(read)
        assert refused.value.status_code == 503
        assert refused.value.headers == {"Retry-After": "1"}
        may_go.set()
        return await asyncio.gather(*running)

    assert asyncio.run(scenario()) == [7] * 5
    assert (use["curve_reads"].used, use["curve_reads_waiting"].used) == (0, 0)
    assert use["curve_reads_waiting"].num_refused == 1


def test_a_place_comes_back_whatever_becomes_of_its_reader() -> None:
    """One that fails, one that goes away while it reads, and one that goes while it waits."""
    use = BudgetUse(Budgets(curve_reads=1, curve_reads_waiting=3))
    may_go, began = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        may_go.wait()

    async def scenario() -> None:
        reads = CurveReads(use)
        with pytest.raises(ZeroDivisionError):
            await reads.run(lambda: 1 // 0)
        reading = asyncio.ensure_future(reads.run(slow))
        await asyncio.to_thread(began.wait)
        waiting = asyncio.ensure_future(reads.run(slow))
        await asyncio.sleep(0)
        for own in (reading, waiting):
            own.cancel()
        await asyncio.gather(reading, waiting, return_exceptions=True)
        assert use["curve_reads"].used == 1  # its thread reads on
        may_go.set()
        assert await reads.run(lambda: 3) == 3

    asyncio.run(scenario())
    assert (use["curve_reads"].used, use["curve_reads_waiting"].used) == (0, 0)
