"""Runs of a test's own at an aggregator that a module shares."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.support.aggregator import Aggregator
from tests.support.peer import Peer
from tests.support.waiting import wait_until

NUMBERS: Final = itertools.count(1)


@pytest.fixture
def run() -> str:
    """A run name that no other test uses."""
    return f"run-{next(NUMBERS)}"


@pytest.fixture
def peer(service: Aggregator, run: str) -> Peer:
    """A rank of a run with two layers."""
    return service.peer(run=run).attach(("net.a.weight", "net.b.weight"))


@pytest.fixture
def attach(service: Aggregator, run: str) -> Callable[..., Peer]:
    """Attach a rank of the test's own run, and wait until the API shows it."""

    def begin(**settings: Any) -> Peer:
        peer = service.peer(**{"run": run} | settings).attach()
        wait_until(lambda: service.get(f"/runs/{peer.greeting.run}").is_success)
        return peer

    return begin


@pytest.fixture
def health(service: Aggregator, run: str) -> Callable[..., Any]:
    """Wait until the health of the test's own run has these values; return it."""

    def ask(**expected: Any) -> Any:
        def check() -> Any:
            response = service.get(f"/runs/{run}/health")
            report = response.json()
            fits = all(report.get(name) == value for name, value in expected.items())
            return response.is_success and fits and report

        return wait_until(check)

    return ask
