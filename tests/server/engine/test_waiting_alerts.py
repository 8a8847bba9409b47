"""Alerts that cannot be stored while the log takes records: the records do not wait for them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gradwatch_server.engine import waiting_alerts
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.store import StorageError, StorageFault
from tests.support.engine import RunningEngine
from tests.support.peer import NewPeer
from tests.support.waiting import PATIENCE_S, wait_until

ROOM = 8 << 20


class Away:
    """Alert events that are refused until `is_back`; `seen` is set once some were."""

    def __init__(self, running: RunningEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._add = running.store.alert_events.add
        self.is_back, self.seen = threading.Event(), threading.Event()
        self.fault = StorageFault.FAILED
        monkeypatch.setattr(running.store.alert_events, "add", self._take)

    def _take(self, events: Any) -> int:
        if not self.is_back.is_set():
            self.seen.set()
            raise StorageError("away", self.fault)
        cursor: int = self._add(events)
        return cursor


def test_records_are_acknowledged_meanwhile_and_alerts_told_afterwards(
    start: Callable[..., RunningEngine], peers: NewPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(max_waiting_alert_bytes=ROOM)
    away = Away(running, monkeypatch)
    peer = peers(running.endpoint).attach()
    peer.steps(0, math.nan)
    assert away.seen.wait(PATIENCE_S)
    peer.steps(1, *[1.0] * 30)  # each is acknowledged; the alert is over by then
    running.shows(frames=31)
    assert (running.events(), running.published.fault) == ([], None)
    assert not running.woken.is_set()

    away.is_back.set()
    wait_until(lambda: len(running.events()) == 2, "both events")
    assert [state for *_, state in running.events()] == ["firing", "resolved"]


def test_so_many_that_there_is_no_room_keep_the_records_waiting(
    start: Callable[..., RunningEngine], peers: NewPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(max_waiting_alert_bytes=10)
    away = Away(running, monkeypatch)
    peer = peers(running.endpoint).attach()
    peer.steps(0, math.nan)
    wait_until(lambda: running.published.fault, "it takes nothing in")
    away.is_back.set()
    wait_until(lambda: running.published.fault is None, "it does again")
    assert [state for *_, state in running.events()] == ["firing"]


def test_no_state_is_saved_that_stands_for_alerts_that_are_not_stored(
    start: Callable[..., RunningEngine], peers: NewPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start finds them in the log, once."""
    monkeypatch.setattr(waiting_alerts, "RETRY_NS", 1)
    retention = RetentionPolicy(checkpoint_s=0.0)
    running = start(max_waiting_alert_bytes=ROOM, retention=retention)
    away = Away(running, monkeypatch)
    peer = peers(running.endpoint).attach()
    peer.steps(0, math.nan)
    assert away.seen.wait(PATIENCE_S)
    peer.steps(1, 1.0, 1.0)
    running = start(retention=retention)
    assert [state for *_, state in running.events()] == ["firing"]


def test_who_is_followed_by_another_owner_ends(
    start: Callable[..., RunningEngine], peers: NewPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(max_waiting_alert_bytes=ROOM)
    away = Away(running, monkeypatch)
    away.fault = StorageFault.GONE
    peer = peers(running.endpoint).attach()
    peer.stats(0, (math.nan, 1.0))
    assert running.failed.wait(PATIENCE_S)
