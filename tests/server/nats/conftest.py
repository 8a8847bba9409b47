"""Calls that are made at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import pytest

T = TypeVar("T")


@pytest.fixture(scope="session")
def at_once() -> Callable[..., list[object]]:
    """Call a function with each number below one, at the same moment: `at_once(3, call)`."""

    def run(count: int, call: Callable[[int], T]) -> list[T]:
        barrier = Barrier(count)

        def begin(number: int) -> T:
            barrier.wait()
            return call(number)

        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(begin, range(count)))

    return run
