"""Receivers of notifications."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.receiver import Receiver


@pytest.fixture
def receive() -> Iterator[Callable[..., Receiver]]:
    """Start a receiver: `receive(port=0)`."""
    made: list[Receiver] = []

    def begin(port: int = 0) -> Receiver:
        made.append(Receiver(port))
        return made[-1]

    yield begin
    for own in made:
        own.close()
