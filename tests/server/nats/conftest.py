"""Three servers, and calls that are made at the same moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import pytest

from tests.support.nats_servers import NATSServers

T = TypeVar("T")


@pytest.fixture(scope="module")
def nats_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NATSServers]:
    """Three servers; a test that ends one starts it again."""
    with NATSServers(tmp_path_factory.mktemp("nats"), num_servers=3) as servers:
        yield servers


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
