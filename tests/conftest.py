"""Fixtures that all tests may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.support")

from tests.support.peer import Peer  # noqa: E402 - after asserts in it are rewritten
from tests.support.waiting import wait_until  # noqa: E402


@pytest.fixture(name="wait_until", scope="session")
def wait_until_fixture() -> Callable[..., Any]:
    """`wait_until(condition, what)`."""
    return wait_until


@pytest.fixture
def peers() -> Iterator[Callable[..., Peer]]:
    """Connect to an endpoint: `peers(endpoint, run="gpt", rank=0, world=1)`."""
    made: list[Peer] = []

    def connect(endpoint: str, **settings: Any) -> Peer:
        made.append(Peer(endpoint, **settings))
        return made[-1]

    yield connect
    for peer in made:
        peer.close()
