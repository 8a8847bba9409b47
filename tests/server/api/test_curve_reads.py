"""Reads from the disk: a few at once, some that wait, and no more."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import HTTPException

from gradwatch_server.api import curve_reads
from gradwatch_server.api.curve_reads import CurveReads
from tests.support.aggregator import Serve
from tests.support.problems import problem


def test_a_few_read_at_once_and_the_next_one_is_told_when_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(curve_reads, "MAX_WAITING", 3)
    may_go, began = threading.Event(), threading.Semaphore(0)

    def read() -> int:
        began.release()
        may_go.wait()
        return 7

    async def scenario() -> list[Any]:
        reads = CurveReads()
        running = [asyncio.ensure_future(reads.run(read)) for _ in range(5)]
        for _ in range(2):
            await asyncio.to_thread(began.acquire)
        assert not began.acquire(blocking=False)
        with pytest.raises(HTTPException, match="3 others wait") as refused:
            await reads.run(read)
        assert refused.value.status_code == 503
        assert refused.value.headers == {"Retry-After": "1"}
        may_go.set()
        return await asyncio.gather(*running)

    assert asyncio.run(scenario()) == [7] * 5


def test_a_place_comes_back_whatever_becomes_of_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_reads, "MAX_READING", 1)
    may_go, began = threading.Event(), threading.Semaphore(0)

    def slow() -> None:
        began.release()
        may_go.wait()

    async def scenario() -> None:
        reads = CurveReads()
        with pytest.raises(ZeroDivisionError):
            await reads.run(lambda: 1 // 0)
        reading = asyncio.ensure_future(reads.run(slow))
        await asyncio.to_thread(began.acquire)
        waiting = asyncio.ensure_future(reads.run(slow))
        await asyncio.sleep(0)
        for own in (reading, waiting):
            own.cancel()
        await asyncio.gather(reading, waiting, return_exceptions=True)
        later = asyncio.ensure_future(reads.run(slow))
        await asyncio.sleep(0.05)
        assert not began.acquire(blocking=False)  # the first thread reads on
        may_go.set()
        await later
        assert await reads.run(lambda: 3) == 3

    asyncio.run(scenario())


@pytest.mark.exhaustive
def test_a_crowd_gets_its_answers_or_is_told_to_come_back(serve: Serve) -> None:
    service = serve()
    peer = service.peer().attach(tuple(f"layer.{n}" for n in range(90)))
    for step in range(400):
        peer.stats(step, (1.0,) * 90)
    peer.acked()
    service.shows(peer)

    with ThreadPoolExecutor(100) as crowd:
        asked = [crowd.submit(service.get, "/runs/gpt/heatmap?columns=512") for _ in range(200)]
        peer.stats(400, (1.0,) * 90)
        peer.acked()
        answers = [own.result() for own in asked]

    assert {answer.status_code for answer in answers} <= {200, 503}
    assert any(answer.is_success for answer in answers)
    for answer in answers:
        if not answer.is_success:
            assert answer.headers["retry-after"] == "1"
            assert "others wait for curves" in problem(answer)[1]
    service.reaches("gpt", 400)
