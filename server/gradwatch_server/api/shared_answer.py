"""An answer that is made once for all who ask for it meanwhile, in a share of the time at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAX_REST_S: Final = 1.0
"""Longest time between two answers, however long one takes."""


class SharedAnswer(Generic[T]):
    """Makes an answer for all who wait for one; it is never older than the question.

    Args:
        make: Makes it.
        share: Returns the share of the time that making it may take.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], share: Callable[[], float]) -> None:
        self._make = make
        self._share = share
        self._next: asyncio.Task[T] | None = None
        self._making = asyncio.Lock()
        self._not_before_s = 0.0

    async def get(self) -> T:
        """Return an answer that is begun after this call."""
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._make_next())
        return await asyncio.shield(self._next)

    async def _make_next(self) -> T:
        async with self._making:
            await asyncio.sleep(self._not_before_s - time.monotonic())
            self._next = None  # who asks from here on wants to know of what happens from here on
            began_s = time.monotonic()
            try:
                return await self._make()
            finally:
                now_s = time.monotonic()
                rest_s = (now_s - began_s) * (1 / self._share() - 1)
                self._not_before_s = now_s + min(rest_s, MAX_REST_S)
