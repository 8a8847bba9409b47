"""Alerts that commands are asked about."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.aggregator import Aggregator
from tests.support.command import Command
from tests.support.peer import Peer
from tests.support.waiting import wait_until


@pytest.fixture
def ask(service: Aggregator, invoke: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in this process that asks the aggregator of the module."""
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("GRADWATCH_URL", service.url)
    return invoke


@pytest.fixture
def fired(service: Aggregator, request: pytest.FixtureRequest) -> tuple[dict[str, Any], Peer]:
    """The first event of a run of the test's own, and the peer that sent it."""
    run = request.node.name.replace("[", "-").replace("]", "")[:60]
    peer = service.peer(run=run).attach(["a", "b"])
    peer.stats(0, [float("nan"), 1.0], loss=1.0)
    peer.acked()
    (event,) = wait_until(lambda: service.json("/alerts", params={"run": run}))
    return event, peer
