"""Reading stored alert events while the engine writes them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwatch_server.storage.sqlite.alert_events import PAGE, AlertStore
from gradwatch_server.storage.sqlite.log import Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    # A name that means something in a URI, which is how the store opens the file.
    log = Log(tmp_path / "da?ta%20#1")
    yield log
    log.close()


def event(number: int, run: str = "gpt") -> tuple[str, str, str, str]:
    return f"id{number}", "firing", run, json.dumps({"number": number, "value": "NaN"})


def test_events_come_behind_a_cursor_in_order(log: Log) -> None:
    """Oldest first, from the one after the cursor, at most a page."""
    store = AlertStore(log.path)
    assert (store.after(0), store.newest()) == ([], 0)
    log.add_alert_events([event(number) for number in range(PAGE + 50)])

    assert [e.cursor for e in store.after(0)] == list(range(1, PAGE + 1))
    assert [e.cursor for e in store.after(PAGE)] == list(range(PAGE + 1, PAGE + 51))
    assert [e.cursor for e in store.after(7, most=2)] == [8, 9]
    assert store.after(PAGE + 50) == store.after(1 << 62) == []
    assert store.newest() == PAGE + 50


def test_events_of_one_run_keep_the_cursor_of_all(log: Log) -> None:
    """A cursor means the same in either stream."""
    log.add_alert_events([event(i, run) for i, run in enumerate(["a", "b", "a", "b"])])
    store = AlertStore(log.path)

    assert [(e.cursor, e.run) for e in store.after(0, "b")] == [(2, "b"), (4, "b")]
    assert [e.cursor for e in store.after(2, "b")] == [4]
    assert store.after(0, "c") == []
    assert store.after(0, "b")[0].alert == {"number": 1, "value": "NaN"}


def test_what_is_committed_is_seen_at_once(log: Log) -> None:
    """Each read is a transaction of its own."""
    store = AlertStore(log.path)
    for number in range(5):
        log.add_alert_events([event(number)])
        assert store.newest() == len(store.after(0)) == number + 1


def test_the_store_cannot_write(log: Log) -> None:
    """Only the engine's connection may: two writers are what the WAL-reset bug needs."""
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        AlertStore(log.path)._connect().execute("DELETE FROM alert_events")
