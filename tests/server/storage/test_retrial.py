"""A stored run is judged by other rules, beside the engine that writes it and after it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Received
from gradwatch_server.storage.retrial import judge_again
from gradwatch_server.storage.rows import StorageError
from gradwatch_server.storage.sqlite import history
from gradwatch_server.storage.sqlite.history import open_to_read, read_log
from gradwatch_server.storage.sqlite.store import DATABASE_NAME, SQLiteStore
from tests.support.engine import RunningEngine, Start
from tests.support.whole_state import UNREPEATED

SOON_OVER = {"exploding": {"clear_steps": 3}}
STRICT = {"exploding": {"limit": 50, "clear_steps": 3}}
NORMS = (1.0, 1.0, 200.0, 200.0, 1.0, 1.0, 1.0, 60.0, 60.0, 1.0, 1.0, 1.0)


@pytest.fixture
def judge(tmp_path: Path) -> Callable[..., list[Alert]]:
    """Judge a run of the data directory: `judge(exploding={"limit": 50})`."""

    def again(run: str = "gpt", **rules: Any) -> list[Alert]:
        settings = Rules.model_validate(UNREPEATED | rules)
        return judge_again(read_log(tmp_path / "data", run), run, settings, 64)

    return again


@pytest.fixture
def engine(start: Start) -> RunningEngine:
    """An engine with a run `gpt` that exploded twice, and another run."""
    running: RunningEngine = start(rules=Rules.model_validate(UNREPEATED | SOON_OVER))
    for run in ("gpt", "other"):
        peer = running.peer(run=run).attach(("a", "b"))
        for step, norm in enumerate(NORMS):
            peer.steps(step, norm)  # each in a commit of its own
        running.shows(run, frames=len(NORMS))
    return running


def rows(alerts: list[Alert]) -> list[tuple[str, int, int, int | None]]:
    return [(alert.rule, alert.attempt, alert.first_step, alert.resolved_step) for alert in alerts]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_stored_run_raises_what_the_rules_say(
    engine: RunningEngine, judge: Callable[..., list[Alert]], stopped: bool
) -> None:
    events = [event.alert for event in engine.store.alert_events.after(0, "gpt")]
    if stopped:
        engine.close()
    same = judge(**SOON_OVER)

    assert [(own.id, own.message) for own in same] == [(events[-1]["id"], events[-1]["message"])]
    assert rows(same) == [("exploding", 1, 2, 6)]
    assert rows(judge(**STRICT)) == [("exploding", 1, 2, 6), ("exploding", 1, 7, 11)]
    assert rows(judge(exploding={"layers": ["x*"]})) == []
    assert rows(judge(exploding={"enabled": False})) == []


def test_an_alert_that_fires_on_has_its_last_bad_step(
    engine: RunningEngine, judge: Callable[..., list[Alert]]
) -> None:
    engine.peer(run="loud").attach(("a", "b")).steps(0, 1.0, *(200.0,) * 9)
    engine.shows("loud", frames=10)
    (alert,) = judge("loud")

    assert (str(alert.state), alert.first_step, alert.last_step) == ("firing", 1, 9)


def test_the_log_is_read_page_by_page(
    engine: RunningEngine, judge: Callable[..., list[Alert]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = judge(**STRICT)
    monkeypatch.setattr(history, "PAGE_ROWS", 3)

    assert judge(**STRICT) == whole


def test_nothing_is_written(
    engine: RunningEngine, judge: Callable[..., list[Alert]], tmp_path: Path
) -> None:
    engine.close()
    file = tmp_path / "data" / DATABASE_NAME
    before = file.read_bytes()
    judge(**STRICT)

    assert file.read_bytes() == before
    with closing(open_to_read(file)) as db, pytest.raises(sqlite3.Error, match="readonly"):
        db.execute("DELETE FROM log")


def test_numbers_that_are_none_end_in_an_error(
    engine: RunningEngine, judge: Callable[..., list[Alert]], tmp_path: Path
) -> None:
    engine.close()
    file = tmp_path / "data" / DATABASE_NAME
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("UPDATE log SET last = 'torn' WHERE run = 'gpt' AND last = 9")

    with pytest.raises(StorageError, match=r"cannot read .*out of order; `gradwatch serve` keeps"):
        judge()


def test_what_is_trimmed_is_not_judged(
    engine: RunningEngine, judge: Callable[..., list[Alert]], tmp_path: Path
) -> None:
    last = next(
        offset
        for offset, entry in engine.store.log.entries("gpt")
        if isinstance(entry.body, Received)
        and getattr(entry.body.envelope.record, "step", -1) == len(NORMS) // 2
    )
    engine.close()
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.log.trim("gpt", last, 1 << 30, 1 << 30)
    store.close()

    assert rows(judge(**STRICT)) == [("exploding", 1, 7, 11)]


def test_a_damaged_entry_costs_itself_only(
    engine: RunningEngine, judge: Callable[..., list[Alert]], tmp_path: Path
) -> None:
    before = judge("other")
    engine.close()
    store = SQLiteStore.open(tmp_path / "data", Clock())
    last = store.log.last("gpt")
    store.db.execute("UPDATE log SET body = x'00' WHERE run = 'gpt' AND last = ?", (last,))
    store.close()

    assert judge("other") == before


def test_what_is_not_there_is_said(
    engine: RunningEngine, judge: Callable[..., list[Alert]], tmp_path: Path
) -> None:
    """A run, the directory, or a file of another version."""
    with pytest.raises(StorageError, match=r"no records of run 'gpx' are stored; `gradwatch runs`"):
        judge("gpx")
    with pytest.raises(StorageError, match=r"there is no .*give the aggregator's data directory"):
        next(read_log(tmp_path))
    engine.close()
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.db.execute("PRAGMA user_version=99")
    store.close()
    with pytest.raises(StorageError, match="schema version 99, this gradwatch reads"):
        judge()
    (tmp_path / "data" / DATABASE_NAME).write_text("no database" * 100)
    with pytest.raises(StorageError, match=r"cannot read .*not a database"):
        judge()
