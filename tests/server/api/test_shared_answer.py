"""One answer for all who ask meanwhile."""

from __future__ import annotations

import asyncio
import time

import pytest

from gradwatch_server.api.shared_answer import SharedAnswer


class FailedError(Exception):
    """It could not be made."""


class Counter:
    """An answer that counts how often it was made."""

    def __init__(self, takes_s: float = 0.0, share: float = 1.0) -> None:
        self.num_made = 0
        self.takes_s = takes_s
        self.shared = SharedAnswer(self.make, lambda: share)

    async def make(self) -> int:
        self.num_made += 1
        number = self.num_made
        await asyncio.sleep(self.takes_s)
        if number == 0:
            raise FailedError
        return number


def test_all_who_ask_at_once_get_the_same() -> None:
    """It is made once; who asks while it is made gets the next one, which is newer."""

    async def scenario() -> None:
        counter = Counter(takes_s=0.05)
        first = [asyncio.create_task(counter.shared.get()) for _ in range(50)]
        await asyncio.sleep(0.01)
        later = [asyncio.create_task(counter.shared.get()) for _ in range(50)]

        assert set(await asyncio.gather(*first)) == {1}
        assert set(await asyncio.gather(*later)) == {2}
        assert counter.num_made == 2

    asyncio.run(scenario())


def test_making_it_takes_a_share_of_the_time_at_most() -> None:
    """S31: however often it is asked for, one after the other."""

    async def scenario() -> None:
        counter, began_s = Counter(takes_s=0.02, share=0.1), time.monotonic()
        for _ in range(4):
            await counter.shared.get()

        assert time.monotonic() - began_s >= 3 * 0.02 / 0.1

    asyncio.run(scenario())


def test_who_goes_away_takes_it_from_nobody() -> None:
    """The others still get theirs."""

    async def scenario() -> None:
        counter = Counter(takes_s=0.02)
        gone, stays = (asyncio.create_task(counter.shared.get()) for _ in range(2))
        await asyncio.sleep(0.01)
        gone.cancel()

        assert await stays == 1

    asyncio.run(scenario())


def test_a_failure_is_told_and_the_next_one_is_made() -> None:
    """It is not kept."""

    async def scenario() -> None:
        counter = Counter()
        counter.num_made = -1
        with pytest.raises(FailedError):
            await counter.shared.get()

        assert await counter.shared.get() == 1

    asyncio.run(scenario())
