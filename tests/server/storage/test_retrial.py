"""A stored run is judged by other rules, beside the engine that writes it and after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Opened, Received
from gradwatch_server.storage import history as history_module
from gradwatch_server.storage.retrial import Retrial, judge_again
from gradwatch_server.storage.sqlite.history import SQLiteHistory
from gradwatch_server.storage.sqlite.store import DATABASE_NAME, SQLiteStore
from gradwatch_server.storage.store import StorageError
from tests.support.engine import RunningEngine

STRICT = {"exploding": {"limit": 50, "clear": 50}}
NORMS = (1.0, 1.0, 200.0, 200.0, 1.0, 1.0, 1.0, 60.0, 60.0, 1.0, 1.0, 1.0)


@pytest.fixture
def judge(tmp_path: Path) -> Callable[..., Retrial]:
    """Judge a run of the data directory: `judge(exploding={"limit": 50, "clear": 50})`."""

    def again(run: str = "gpt", **rules: Any) -> Retrial:
        with closing(SQLiteHistory(tmp_path / "data")) as history:
            return judge_again(history, run, Rules.model_validate(rules), 64)

    return again


@pytest.fixture
def engine(start: Any, peers: Any) -> RunningEngine:
    """An engine with a run `gpt` that exploded twice, and one that it is not about."""
    running: RunningEngine = start()
    for run in ("gpt", "other"):
        peer = peers(running.endpoint, run=run).attach(("a", "b"))
        peer.steps(0, *NORMS)
        running.shows(run, frames=len(NORMS))
    return running


def rows(retrial: Retrial) -> list[tuple[str, str, int, int, int | None]]:
    return [
        (str(row.verdict), row.either.rule, row.either.attempt, *_span(row.either))
        for row in retrial.alerts
    ]


def _span(incident: Any) -> tuple[int, int | None]:
    return incident.first_step, incident.resolved_step


@pytest.mark.parametrize("stopped", [False, True])
def test_what_would_have_fired_stands_beside_what_did(
    engine: RunningEngine, judge: Any, stopped: bool
) -> None:
    """While the engine goes on and after it stopped; with its own rules all is as it was."""
    if stopped:
        engine.close()
    same, strict, off = judge(), judge(**STRICT), judge(exploding={"enabled": False})

    assert rows(same) == [("both", "exploding", 1, 2, 6)]
    assert same.alerts[0].now == same.alerts[0].before
    assert rows(strict) == [("both", "exploding", 1, 2, 6), ("only now", "exploding", 1, 7, 11)]
    assert rows(off) == [("only before", "exploding", 1, 2, 6)]
    (attempt,) = strict.attempts
    assert (attempt.frames, attempt.first_step, attempt.last_step, attempt.trimmed) == (
        *(12, 0, 11),
        False,
    )
    assert strict.not_applied == 0


def test_the_log_is_read_page_by_page(
    engine: RunningEngine, judge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read lasts long; how far it is can be shown."""
    whole = judge(**STRICT)
    monkeypatch.setattr(history_module, "PAGE_ENTRIES", 3)
    told: list[tuple[int, int]] = []
    with closing(SQLiteHistory(tmp_path / "data")) as history:
        paged = judge_again(
            history, "gpt", Rules.model_validate(STRICT), 64, lambda *read: told.append(read)
        )
        _, last = history.span()

    assert paged == whole
    assert [read for read, _ in told] == [*range(3, last, 3), last]
    assert {total for _, total in told} == {last}


def test_nothing_is_written(engine: RunningEngine, judge: Any, tmp_path: Path) -> None:
    """Not a byte of the file, and the next start finds a store that was stopped cleanly."""
    engine.close()
    file = tmp_path / "data" / DATABASE_NAME
    before = file.read_bytes()
    judge(**STRICT)

    assert file.read_bytes() == before
    with (
        closing(SQLiteHistory(tmp_path / "data")) as history,
        pytest.raises(StorageError, match="readonly"),
    ):
        history._db.execute("DELETE FROM log")


def test_a_start_after_reading_is_no_start_after_a_crash(
    engine: RunningEngine, judge: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine.close()
    judge()
    caplog.set_level("INFO")
    SQLiteStore.open(tmp_path / "data", Clock()).close()

    assert "unclean" not in caplog.text


def test_limits_are_judged_too(engine: RunningEngine, judge: Any) -> None:
    """Patterns that match nothing are told."""
    retrial = judge(
        exploding={"layers": ["x*"]},
    )

    assert rows(retrial) == [("only before", "exploding", 1, 2, 6)]
    assert retrial.warnings == [
        "rule exploding: layers ['x*'] match none of the 2 layers in 0 named groups"
    ]


def test_what_is_trimmed_is_said_and_not_judged(
    engine: RunningEngine, judge: Any, tmp_path: Path
) -> None:
    """From the first step that is kept on."""
    sessions = list(engine.engine._state.sessions.values())
    (session,) = (own.id for own in sessions if own.hello.run == "gpt")
    steps = [
        (offset, entry.body.envelope.record)
        for offset, entry in engine.store.log.entries()
        if isinstance(entry.body, Received) and entry.body.envelope.session == session
    ]
    engine.close()
    last = next(offset for offset, record in steps if getattr(record, "step", -1) == 5)
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.log.trim(0, last)
    store.close()
    retrial = judge(**STRICT)

    assert rows(retrial) == [
        ("not judged", "exploding", 1, 2, 6),
        ("only now", "exploding", 1, 7, 11),
    ]
    (attempt,) = retrial.attempts
    assert (attempt.first_step, attempt.last_step, attempt.trimmed) == (6, 11, True)


def test_attempts_keep_their_numbers_when_earlier_ones_are_gone(
    engine: RunningEngine, judge: Any, peers: Any, tmp_path: Path
) -> None:
    """The ids of alerts are made of them."""
    peer = peers(engine.endpoint, run="gpt", job="again").attach(("a", "b"))
    peer.steps(0, *NORMS)
    engine.shows("gpt", attempt=2, frames=len(NORMS))
    first = next(
        entry.body.session
        for _, entry in engine.store.log.entries()
        if isinstance(entry.body, Opened) and entry.body.hello.run == "gpt"
    )
    engine.close()
    both = judge()
    assert rows(both) == [("both", "exploding", 1, 2, 6), ("both", "exploding", 2, 2, 6)]

    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.db.execute("DELETE FROM log WHERE session = ?", (first,))
    store.close()
    newer = judge()
    assert rows(newer) == [("not judged", "exploding", 1, 2, 6), ("both", "exploding", 2, 2, 6)]
    assert newer.alerts[1].now == both.alerts[1].now


def test_a_damaged_entry_costs_itself_only(
    engine: RunningEngine, judge: Any, tmp_path: Path
) -> None:
    """Its step lacks it; the rest is judged."""
    engine.close()
    store = SQLiteStore.open(tmp_path / "data", Clock())
    last = store.log.last_offset
    store.db.execute("UPDATE log SET payload = x'00' WHERE log_offset = ?", (last,))
    store.close()

    assert judge("other").attempts[0].frames == len(NORMS) - 1


def test_what_is_not_there_is_said(engine: RunningEngine, judge: Any, tmp_path: Path) -> None:
    """A run, the directory, or a file of another version."""
    with pytest.raises(StorageError, match=r"no records of run 'gpx' are in .*: gpt, other$"):
        judge("gpx")
    with pytest.raises(StorageError, match=r"there is no .*give the aggregator's data directory"):
        SQLiteHistory(tmp_path)
    engine.close()
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.db.execute("PRAGMA user_version=99")
    store.close()
    with pytest.raises(StorageError, match="schema version 99, this gradwatch reads"):
        judge()
    (tmp_path / "data" / DATABASE_NAME).write_text("no database" * 100)
    with pytest.raises(StorageError, match=r"cannot read .*not a database"):
        judge()
