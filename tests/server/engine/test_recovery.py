"""Runs come into memory while the engine works: live ones first, and any that is asked for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from gradwatch_server.api.listing import RunListing
from gradwatch_server.api.views import Views
from gradwatch_server.budgets import Budgets
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Resumed
from gradwatch_server.engine import recovery
from gradwatch_server.engine.alert_commands import AddSilence, RemoveSilence
from gradwatch_server.engine.engine import Engine
from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_wire import Bye
from gradwatch_wire.health import Phase, RankState
from tests.support.engine import Start, attached
from tests.support.waiting import PATIENCE_S, wait_until

YEAR_NS = 366 * 86_400 * 10**9


@pytest.fixture
def on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run comes into memory unless somebody asks for it."""
    monkeypatch.setattr(recovery, "SLICE_RUNS", 0)


def ended(running: Any, *runs: str) -> None:
    for run in runs:
        peer = running.peer(run=run).attach()
        peer.steps(0, 1.0)
        peer.send(Bye())
        peer.acked()
        running.shows(run, frames=1)


def again(start: Start, running: Any, **settings: Any) -> Any:
    return start(endpoint=running.endpoint, waits=False, **settings)


def test_runs_that_were_live_come_first(start: Start) -> None:
    running = start()
    ended(running, "a", "b")
    running.peer(run="z").attach().steps(0, 1.0)
    running.shows("z", frames=1)
    ended(running, "c")
    running.engine.stop()

    assert list(running.engine._checkpointer.find_runs()) == ["z", "a", "b", "c"]


@pytest.mark.usefixtures("on_demand")
def test_a_run_comes_when_somebody_asks_for_it(start: Start) -> None:
    running = start()
    ended(running, "a", "b", "c")
    running = again(start, running)

    assert set(running.published.revisions) == {"a", "b", "c"}
    assert running.engine._state.runs == {}
    assert running.shows("b").frames == 1
    assert set(running.engine._state.runs) == {"b"}
    assert running.engine.budget_use["runs"].used == 3
    assert running.published.num_away == 2


@pytest.mark.usefixtures("on_demand")
def test_what_ended_is_listed_without_coming_into_memory(start: Start) -> None:
    """But where its stored summary is damaged."""
    running = start()
    ended(running, "a", "b")
    running = again(start, running)
    damaged = running.published.summaries
    damaged["b"] = damaged["b"][:-1] + b"?"

    rows = asyncio.run(RunListing(running.engine, Views(running.engine)).all())
    assert {row.name: (row.phase, row.step) for row in rows} == {
        "a": (Phase.ENDED, 0),
        "b": (Phase.ENDED, 0),
    }
    assert set(running.engine._state.runs) == {"b"}


def test_what_was_recovered_may_be_evicted(start: Start) -> None:
    """Also where no entry was applied: a clean stop saves all of a run."""
    running = start(budgets=Budgets(runs=3))
    ended(running, "a", "b", "c")
    running = start(endpoint=running.endpoint, budgets=Budgets(runs=3))
    use = running.engine.budget_use
    assert use["runs"].used == 3
    assert (use["total_bytes"].used or 0) > 3 * 15_000
    running.peer(run="d").attach()

    running.shows("d")
    assert set(running.published.revisions) == {"b", "c", "d"}


@pytest.mark.usefixtures("on_demand")
def test_a_session_goes_on_where_it_was(start: Start) -> None:
    """HELLO brings its run into memory, before anything of it is stored."""
    running, peer = attached(start())
    peer.steps(0, 1.0, 1.0)
    running.shows(frames=2)
    running = again(start, running)

    assert peer.greet().acked == peer.seq
    peer.steps(2, 1.0)
    view = running.shows(frames=3)
    assert (view.attempt, view.stored) == (1, 4)
    bodies = [entry.body for entry in running.entries()]
    assert [isinstance(body, Resumed) for body in bodies].count(True) == 1


def test_a_silence_of_no_run_yet_is_stored_and_read_before_the_first_round(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no run's log; and a reader that comes early is not told that there is none."""
    running = start()
    until_ns = running.engine.clock.now_ns() + YEAR_NS
    made = running.engine.commands.submit(
        AddSilence("gpt", "exploding", "*", until_ns, "ann", "")
    ).result(PATIENCE_S)
    seen: list[str] = []

    def begin(engine: Engine) -> None:
        seen.extend(silence.id for silence in engine.published.silences)
        threading.Thread.start(engine)

    monkeypatch.setattr(Engine, "start", begin)
    again(start, running)

    assert seen == [made.id]


@pytest.mark.usefixtures("on_demand")
def test_a_run_gets_what_it_missed(start: Start) -> None:
    """Rules, budgets and silences in force become entries of its log."""
    running = start()
    running.peer(run="gpt").attach().steps(0, 1.0)
    ended(running, "other")
    old = AddSilence("gpt", "exploding", "*", running.engine.clock.now_ns() + YEAR_NS, "ann", "")
    silence = running.engine.commands.submit(old).result(PATIENCE_S)
    rules = Rules.model_validate({"nonfinite": {"clear_steps": 7}})
    running = again(start, running, rules=rules)
    submit = running.engine.commands.submit
    submit(RemoveSilence(silence.id)).result(PATIENCE_S)
    new = AddSilence("gpt", "nonfinite", "*", old.until_ns, "bob", "")
    added = submit(new).result(PATIENCE_S)

    view = running.shows("gpt", frames=1)
    assert view.rules == rules
    run = running.engine._state.runs["gpt"]
    assert [silence.id for silence in run.silences] == [added.id]
    assert "other" not in running.engine._state.runs


def test_a_rank_that_died_meanwhile_is_told_although_nobody_asks(start: Start) -> None:
    running, peer = attached(start(session_timeout_s=1.0))
    peer.steps(0, 1.0)
    peer.close()
    running = again(start, running, session_timeout_s=1.0)

    sessions = running.engine._state.sessions
    wait_until(lambda: [session.state for session in sessions.values()] == [RankState.LOST])


@pytest.mark.usefixtures("on_demand")
@pytest.mark.parametrize("finder", ["reader", "rank"])
def test_damage_that_is_found_late_costs_what_cannot_be_read(
    start: Start, monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    """The engine begins anew, and clients tell it what they have still."""
    running, peer = attached(start())
    peer.steps(0, 1.0)
    running.shows(frames=1)
    running = again(start, running)
    boot_id, state = running.engine.boot_id, running.store.state
    run = state.run

    def damaged(name: str) -> Any:
        monkeypatch.setattr(state, "run", run)
        raise StorageError("database disk image is malformed", StorageFault.DAMAGED)

    monkeypatch.setattr(state, "run", damaged)
    if finder == "rank":
        wait_until(peer.send_hello)
        wait_until(lambda: running.engine.boot_id != boot_id, "the engine begins anew")
    running.shows(frames=1)

    assert running.engine.boot_id != boot_id
    peer.received()
    assert peer.greet().boot_id == running.engine.boot_id
    peer.steps(1, 1.0)
    running.shows(frames=2)
    assert running.published.num_apply_errors == 0
