"""A ledger that does not answer: it is told, and keeps nobody from ending."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.cluster.alerts import ledger_watch as module
from gradwatch_server.cluster.alerts.ledger_watch import LedgerWatch
from gradwatch_server.storage.sqlite.store import SQLiteStore
from tests.support.waiting import PATIENCE_S, wait_until


def test_a_look_that_never_ends_is_a_fault_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANGS_S", 0.05)
    monkeypatch.setattr(module, "STOP_S", 0.05)
    store, go_on = SQLiteStore.open(tmp_path, Clock()), threading.Event()
    events = store.alert_events

    def hang() -> int:
        go_on.wait(PATIENCE_S)
        return 0

    monkeypatch.setattr(events, "newest", hang)
    watch = LedgerWatch(events, lambda: None)
    assert watch.fault is None
    watch.start()
    wait_until(lambda: "has not answered" in (watch.fault or ""), "the fault")
    watch.stop()
    assert watch._looks.is_alive()
    go_on.set()
    wait_until(lambda: watch.fault is None, "the answer")
    store.close()
