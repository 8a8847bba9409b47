"""The engine over real sockets: what it answers, what it stores, and what a restart finds."""

from __future__ import annotations

import functools
import json
import math
import random
import sqlite3
import threading
import time
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwatch_server.budgets import Budgets, LoggedBudgets
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Began, BudgetsSet, Entry, Lost, Opened, Received, Tick
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.engine.intake import NO_BOOT
from gradwatch_server.storage import checkpointer
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.rows import LogEntry, StorageError, StorageFault
from gradwatch_server.storage.sqlite.database import PAGE_BYTES
from gradwatch_server.storage.sqlite.history import read_log
from gradwatch_wire import (
    Ack,
    Alert,
    Beat,
    Bye,
    Envelope,
    Event,
    Hello,
    Kind,
    Refuse,
    Welcome,
    encode,
)
from gradwatch_wire.health import RankState
from gradwatch_wire.jsonable import jsonable
from gradwatch_wire.limits import MAX_RECORD_BYTES
from tests.support.engine import Start, attached
from tests.support.records import stats_of
from tests.support.waiting import PATIENCE_S, wait_until
from tests.support.whole_state import UNREPEATED

NAN = math.nan


def noise(layers: int) -> list[float]:
    """Norms that no packing makes smaller."""
    return [1.0 + random.random() for _ in range(layers)]


def test_hello_is_welcomed_and_records_are_acknowledged(start: Start) -> None:
    """WELCOME says who answers and what it reads; ACK how far the log has it."""
    running = start()
    peer = running.peer()
    welcome = peer.greet()

    assert welcome == Welcome(
        boot_id=running.engine.boot_id,
        acked=0,
        max_record_bytes=MAX_RECORD_BYTES,
        proto_min=1,
        proto_max=1,
    )
    peer.declare()
    peer.stats(0)
    assert peer.acked() == Ack(boot_id=running.engine.boot_id, acked=2, rewind=False)

    view = running.shows(stored=2, frames=1)
    assert (view.name, view.attempt, view.names) == ("gpt", 1, ("a", "b"))


def num_committed(running: Any) -> int:
    """Return how many records another process finds in the log."""
    kinds = (Kind.MANIFEST, Kind.STATS)
    return sum(entry.kind in kinds for entry in read_log(running.path.parent))


def test_what_is_acknowledged_is_committed(start: Start) -> None:
    running, peer = attached(start())
    for step in range(20):
        peer.stats(step)
        acked = peer.acked().acked
        assert num_committed(running) == acked == step + 2


def test_a_record_that_comes_twice_is_stored_once(start: Start) -> None:
    """Copies of a resend are acknowledged again, so that the client lets them go."""
    running, peer = attached(start())
    peer.stats(0)
    peer.acked()
    for seq in (1, 2, 2):
        peer.send_as(seq, 1, Event(name="copy", step=0))
        assert peer.receive() == Ack(boot_id=running.engine.boot_id, acked=2)

    assert running.published.num_duplicates == 3
    assert running.shows(stored=2).events == {}


def test_a_missing_record_is_asked_for(start: Start) -> None:
    """The ACK says rewind; nothing after the gap is stored until the missing one came."""
    running, peer = attached(start())
    peer.send_as(4, 1, Event(name="too early", step=0))
    assert peer.receive() == Ack(boot_id=running.engine.boot_id, acked=1, rewind=True)

    for seq in (2, 3, 4):
        peer.send_as(seq, 1, Event(name="sent again", step=0))
    peer.acked(4)

    view = running.shows(stored=4)
    assert (view.lost, dict(view.events)) == (0, {"sent again": 3})


def test_a_record_the_client_no_longer_has_is_declared_lost(start: Start) -> None:
    """By its `low`, and only then; produced == stored + lost."""
    running, peer = attached(start())
    peer.send_as(9, 7, Event(name="x", step=0))
    assert peer.receive() == Ack(boot_id=running.engine.boot_id, acked=6, rewind=True)
    for seq in (7, 8, 9):
        peer.send_as(seq, 7, Event(name="x", step=0))
    peer.acked(9)
    view = running.shows(stored=4)

    assert (view.stored, view.lost) == (4, 5)
    assert view.ranks[0].lost == 5


def test_a_beat_is_answered_and_not_stored(start: Start) -> None:
    running, peer = attached(start())
    rows = len(running.entries())

    assert peer.say(Beat(last_step=3)) == Ack(boot_id=running.engine.boot_id, acked=1)
    assert peer.say(Beat(last_step=3)) == Ack(boot_id=running.engine.boot_id, acked=1)
    assert len(running.entries()) == rows


def test_a_session_that_never_said_hello_learns_who_is_here(start: Start) -> None:
    running = start()
    peer = running.peer()
    for record in (Beat(), Bye(), Event(name="x", step=0)):
        peer.send_as(0 if isinstance(record, Beat) else 1, 1, record)
        assert peer.receive() == Ack(boot_id=NO_BOOT, acked=0)

    assert running.published.revisions == {}
    assert running.entries() == []


@pytest.mark.parametrize("seq", [0, 1])
@pytest.mark.parametrize(
    "record",
    [
        Welcome(boot_id=bytes(16)),
        Ack(boot_id=bytes(16), acked=0),
        Alert(alert={}),
        Refuse(reason=""),
    ],
    ids=lambda record: type(record).__name__,
)
def test_what_only_we_may_say_is_refused(start: Start, record: Any, seq: int) -> None:
    running = start()
    peer = running.peer().attach(("a",))
    peer.seq = 1
    peer.send_as(seq and 2, 1, record)
    peer.send_as(2, 1, Event(name="x", step=0))
    peer.acked(2)

    assert running.ingest.refused == {"unexpected": 1}
    assert running.shows(stored=2).stored == 2


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "é", "x" * 129, "a\x1b[31m"])
def test_a_bad_run_name_is_refused_with_the_rule(start: Start, name: str) -> None:
    """The client is told once; nothing of it is stored."""
    running = start()
    answer = running.peer(run=name).say(Hello(run=name, rank=0, world=1))

    assert isinstance(answer, Refuse)
    assert "1 to 128 letters, digits" in answer.reason
    assert answer.reason.isascii()
    assert (running.ingest.refused, running.published.revisions) == ({"run name": 1}, {})


def test_a_hello_too_large_to_keep_is_refused(start: Start) -> None:
    running = start()
    versions = {f"part{i}": "9" * 4_000 for i in range(32)}
    answer = running.peer().say(Hello(run="gpt", rank=0, world=1, versions=versions))

    assert isinstance(answer, Refuse)
    assert "at most 8192 are read" in answer.reason
    assert running.ingest.refused == {"hello size": 1}


def test_an_alert_goes_down_to_the_ranks_of_its_run(start: Start) -> None:
    running = start()
    first, second, ended = (running.peer(rank=r, world=3).attach() for r in range(3))
    ended.send(Bye())
    ended.acked()
    other = running.peer(run="other").attach()
    first.stats(0, (NAN, 1.0), loss=1.0)
    second.stats(0, (NAN, 1.0), loss=NAN)
    for peer in (first, second):
        while not peer.alerts:
            peer.say(Beat())
    stored = running.store.alert_events.after(0)

    (alert,) = second.alerts
    assert first.alerts[0]["id"] == alert["id"] == stored[0].alert["id"]
    assert (alert["rule"], alert["state"], alert["first_step"]) == ("nonfinite", "firing", 0)
    origin = alert["origin"]
    assert (origin["rank"], origin["layer"], origin["first_gradient"]) == (1, None, "a")
    assert math.isnan(alert["origin"]["value"])
    assert jsonable(alert) == stored[0].alert
    for peer in (other, ended):
        peer.say(Beat())
        assert peer.alerts == []
    assert running.woken.is_set()


def test_many_sessions_at_once_are_all_served(start: Start) -> None:
    """Sixteen ranks interleave; each sees its own acknowledgements, and each frame is whole."""
    running = start()
    ranks = [running.peer(rank=rank, world=16) for rank in range(16)]
    for peer in ranks:
        peer.greet()
        peer.declare()
    for step in range(20):
        for peer in ranks:
            peer.stats(step)
    for peer in ranks:
        assert peer.acked(21).acked == 21

    view = running.shows(stored=16 * 21, frames=20)
    assert view.series.coverage.tolist() == [1.0] * 20


@pytest.mark.slow
def test_a_session_without_a_sign_of_life_is_lost_and_may_come_back(start: Start) -> None:
    running, peer = attached(start(session_timeout_s=1.0))
    running.shows()
    wait_for_state(running, 0, RankState.LOST)

    peer.say(Beat())

    wait_for_state(running, 0, RankState.ALIVE)
    bodies = [type(entry.body) for entry in running.entries()]
    assert bodies == [Began, Opened, Received, Lost, Opened]


def wait_for_state(running: Any, rank: int, state: RankState) -> None:
    wait_until(lambda: running.view().ranks[rank].state is state, f"rank {rank} is {state}")


@pytest.mark.slow
def test_a_session_that_beats_is_never_lost(start: Start) -> None:
    """A long step is no loss: another session, which does not beat, is given up meanwhile."""
    running = start(session_timeout_s=2.0)
    beating, silent = (running.peer(rank=rank, world=2).attach() for rank in range(2))
    running.shows(stored=2)
    while running.view().ranks[1].state is RankState.ALIVE:
        beating.say(Beat())

    lost = [e.body.session for e in running.entries() if isinstance(e.body, Lost)]
    assert lost == [silent.session]


@pytest.mark.slow
def test_time_closes_a_frame_without_any_record(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregator writes that time passed, once a second, only while a frame waits.

    It looks each second, as the loss of the silent session shows.
    """
    monkeypatch.setattr("gradwatch_server.core.frames.assembler.LATENESS_NS", 1_000_000_000)
    running = start(session_timeout_s=4.0)
    peer = running.peer(world=2).attach()
    peer.steps(0, 1.0)
    view = running.shows(frames=1)
    rows = len(running.entries())
    wait_for_state(running, 0, RankState.LOST)

    assert view.frame.coverage == 0.5
    bodies = [type(entry.body) for entry in running.entries()[rows:]]
    assert Tick not in bodies[: bodies.index(Lost)]  # one of the same moment is of the silence


def num_ticks(running: Any) -> int:
    return sum(isinstance(entry.body, Tick) for entry in running.entries())


@pytest.mark.slow
def test_a_step_of_the_system_clock_is_not_noticed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour forward loses no rank, an hour back stops neither views nor ticks."""
    monkeypatch.setattr("gradwatch_server.core.frames.assembler.LATENESS_NS", 1_800 * 10**9)
    hours = 0
    clock = Clock(wall_ns=lambda: time.time_ns() + hours * 3_600 * 10**9)
    running = start(session_timeout_s=60.0, clock=clock)
    running.peer(run="waiting", world=2).attach().steps(0, 1.0)
    peer = running.peer().attach()
    for step, hours in enumerate((1, 1, -1, -1)):  # noqa: B007 - the clock reads it
        peer.steps(step, 1.0)
        running.shows(frames=step + 1)
        ticks = num_ticks(running)
        wait_until(functools.partial(has_ticked, running, ticks), "a second passes")

    assert Lost not in [type(entry.body) for entry in running.entries()]
    assert running.view("waiting").frames == 0
    for run in ("waiting", "gpt"):
        times = [entry.received_ns for _, entry in running.store.log.entries(run)]
        assert times == sorted(times)


def has_ticked(running: Any, before: int) -> bool:
    return num_ticks(running) > before


def story_of(running: Any) -> Any:
    """Return all that readers see, comparable over a restart."""
    views = [view_run(run) for run in running.engine._state.runs.values()]
    return [
        (
            *(v.name, v.attempts, v.names, v.ranks, v.stored, v.lost, v.late, v.unresolved),
            [jsonable(alert.to_dict()) for alert in v.alerts],
            (v.frames, v.series.total_norm.tobytes(), v.first_bad),
        )
        for v in views
    ]


def test_a_restart_finds_everything_as_it_was(start: Start) -> None:
    """State, alerts, their cursors, and how far each session is; only the boot id is new."""
    rules = Rules.model_validate(
        UNREPEATED | {"records_lost": {"enabled": False}, "exploding": {"clear_steps": 3}}
    )
    running, peer = attached(start(rules=rules))
    peer.steps(0, 1.0, NAN, 1.0, 1.0, 1.0, 500.0, 500.0, 1.0)
    peer.send_as(14, 12, Event(name="x", step=9))
    peer.receive()
    running.shows(lost=2)
    before, events, boot_id = story_of(running), running.events(), running.engine.boot_id
    assert [state for _, _, state in events] == ["firing", "resolved", "firing"]

    for _ in range(2):  # twice: a restart must not change what the next one finds
        running = start(rules=rules, endpoint=running.endpoint)
        assert story_of(running) == before
        assert running.events() == events
        assert running.published.cursor == 3
        assert running.engine.boot_id != boot_id

    welcome = peer.greet()
    assert (welcome.acked, welcome.boot_id) == (11, running.engine.boot_id)
    for seq in (12, 13, 14):
        peer.send_as(seq, 12, Event(name="x", step=9))
    peer.seq = 14
    peer.acked(14)
    peer.steps(8, 1.0, 1.0, NAN)
    running.shows(frames=11)
    assert [(c, s) for c, _, s in running.events()[3:]] == [(4, "resolved"), (5, "firing")]


def test_an_alert_pending_over_a_restart_fires_once(start: Start) -> None:
    rules = Rules.model_validate({"exploding": {"for_steps": 2}})
    running, peer = attached(start(rules=rules))
    peer.steps(0, 500.0)
    running.shows(frames=1)
    assert running.events() == []

    running = start(rules=rules, endpoint=running.endpoint)
    peer.greet()
    peer.steps(1, 500.0, 500.0)
    running.shows(frames=3)

    (event,) = running.store.alert_events.after(0)
    assert (event.alert["first_step"], event.alert["fired_step"]) == (0, 1)


def test_each_rise_of_a_severity_is_one_event_over_restarts_too(start: Start) -> None:
    running, peer = attached(start())
    for step, scale in enumerate((2.0, 1.0)):
        peer.stats(step, (NAN, 1.0), loss_scale=scale)
    peer.acked()
    running.shows(frames=2)

    running = start(endpoint=running.endpoint)
    peer.greet()
    peer.stats(2, (NAN, 1.0), loss_scale=0.5, loss=NAN)
    peer.acked()
    running.shows(frames=3)

    events = [event.alert for event in running.store.alert_events.after(0)]
    assert len({event["id"] for event in events}) == 1
    assert [(e["state"], e["severity"], e["raised_step"]) for e in events] == [
        ("firing", "info", None),
        ("firing", "critical", 2),
    ]


@pytest.mark.slow
def test_new_rules_hold_from_the_restart_on(start: Start) -> None:
    running, peer = attached(start())
    peer.steps(0, 50.0, 50.0)
    running.shows(frames=2)
    strict = Rules.model_validate({"exploding": {"limit": 20}})
    for _ in range(2):
        running = start(rules=strict, endpoint=running.endpoint)
        assert running.events() == []
    assert [type(e.body).__name__ for e in running.entries()].count("RulesSet") == 1
    peer.greet()
    peer.steps(2, 50.0, 50.0)
    running.shows(frames=4)

    (event,) = running.store.alert_events.after(0)
    assert event.alert["first_step"] == 2
    running = start(endpoint=running.endpoint)
    assert len(running.events()) == 1


def test_new_budgets_hold_from_the_restart_on(start: Start) -> None:
    running = start()
    running.peer().attach()
    running.shows(stored=1)
    for budgets in (Budgets(runs=7), *[Budgets(run_bytes=1 << 25)] * 2):
        running = start(endpoint=running.endpoint, budgets=budgets)

    assert running.engine._state.budgets == budgets.logged()
    said = [json.loads(e.body.budgets) for e in running.entries() if isinstance(e.body, BudgetsSet)]
    assert [own["run_bytes"] for own in said] == [1 << 25]
    assert running.engine._state.runs["gpt"].budgets == budgets.logged()
    assert said[-1].keys() == LoggedBudgets.model_fields.keys()


@pytest.mark.slow
def test_a_rank_seen_last_before_a_restart_gets_its_time_again(start: Start) -> None:
    running = start()
    ended = running.peer(rank=0, world=2).attach()
    running.peer(rank=1, world=2).attach()
    ended.send(Bye())
    ended.acked()

    running = start(session_timeout_s=1.0)

    alive = running.view().ranks[1].session
    assert set(running.published.last_seen) == {alive}
    wait_for_state(running, 1, RankState.LOST)
    assert running.view().ranks[0].state is RankState.ENDED


@pytest.mark.slow
def test_a_full_disk_withholds_the_ack_and_loses_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    peer = running.peer().attach([f"l{i}" for i in range(2_000)])
    db = running.store.db
    pages = db.number("page_count")
    db.execute(f"PRAGMA max_page_count={pages + 1}")
    for step in range(10):
        peer.stats(step, noise(2_000))
    wait_until(lambda: running.published.fault)
    assert "database or disk is full" in str(running.published.fault)
    append, tries = running.store.log.append, list[int]()

    def counted(lines: Any) -> None:
        tries.append(len(lines))
        append(lines)

    monkeypatch.setattr(running.store.log, "append", counted)
    wait_until(lambda: len(tries) > 1, "it tries again")
    stored = num_committed(running)
    if stored > 1:  # the first was acknowledged before
        assert peer.acked(stored).acked == stored
    assert peer.is_silent()

    db.execute("PRAGMA max_page_count=1000000")
    peer.acked(11)

    view = running.shows(stored=11, frames=10)
    assert (view.lost, running.published.fault) == (0, None)


@pytest.mark.slow
def test_alerts_wait_for_a_full_disk_too(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running, peer = attached(start())
    add, has_room = running.store.alert_events.add, threading.Event()

    def full_at_first(events: Any) -> int:
        if not has_room.is_set():
            raise StorageError("database or disk is full", StorageFault.FULL)
        cursor: int = add(events)
        return cursor

    monkeypatch.setattr(running.store.alert_events, "add", full_at_first)
    peer.stats(0, (NAN, 1.0))
    wait_until(lambda: running.published.fault)
    assert not running.woken.is_set()

    has_room.set()
    assert running.woken.wait(PATIENCE_S)
    wait_until(lambda: running.published.fault is None)
    assert [state for _, _, state in running.events()] == ["firing"]


def test_records_whose_alerts_cannot_be_stored_are_not_stored_either(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sees the frame meanwhile; the next start takes the record, and its alert, once."""
    running, peer = attached(start())
    running.shows(stored=1)

    def full(_events: Any) -> int:
        raise StorageError("database or disk is full", StorageFault.FULL)

    monkeypatch.setattr(running.store.alert_events, "add", full)
    peer.stats(0, (NAN, 1.0))
    wait_until(lambda: running.published.fault)
    assert (running.view().frames, running.view().stored) == (0, 1)
    assert not running.woken.is_set()
    running = start(endpoint=running.endpoint)

    assert running.view().stored == 1
    peer.greet()
    peer.send_as(2, 1, stats_of(0, [NAN, 1.0]))
    peer.acked(2)
    assert [state for _, _, state in running.events()] == ["firing"]


def test_a_stop_while_the_disk_is_full_is_clean(start: Start) -> None:
    running = start()
    peer = running.peer().attach([f"l{i}" for i in range(2_000)])
    db = running.store.db
    pages = db.number("page_count")
    db.execute(f"PRAGMA max_page_count={pages}")
    for step in range(10):
        peer.stats(step, noise(2_000))
    wait_until(lambda: running.published.fault)
    endpoint = running.endpoint
    running = start(endpoint=endpoint)

    acked = peer.greet().acked
    assert acked == running.engine._tracker.accepted(peer.session) < 11
    for step in range(acked - 1, 10):
        peer.send_as(step + 2, 1, Event(name="again", step=step))
    peer.acked(11)
    assert running.shows(stored=11).lost == 0


@pytest.mark.slow
def test_a_damaged_log_is_set_aside_and_the_service_goes_on(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(retention=RetentionPolicy(checkpoint_s=1e9))
    peer = running.peer().attach([f"l{i}" for i in range(500)])
    for step in range(200):
        peer.stats(step, noise(500))
        peer.acked(step + 2)
    running.engine._is_ahead = True  # as if it was killed: no checkpoint stands for the records
    running.close()
    data = bytearray(running.path.read_bytes())
    with sqlite3.connect(running.path) as db:
        bodies = "SELECT body FROM log WHERE is_head = 0 ORDER BY id LIMIT 1 OFFSET 100"
        ((body,),) = db.execute(bodies)
    db.close()
    middle = data.index(body[:60]) // PAGE_BYTES * PAGE_BYTES
    data[middle : middle + PAGE_BYTES] = b"\xff" * PAGE_BYTES
    running.path.write_bytes(data)

    running = start(endpoint=running.endpoint)

    (kept,) = running.path.parent.glob("gradwatch.db.damaged-*")
    assert kept.read_bytes()[100 : len(data)] == data[100:]  # after the header, which counts opens
    assert "is damaged" in caplog.text
    assert kept.name in caplog.text
    assert running.published.fault is None
    assert running.published.loss is not None
    assert "rows could not be read" in running.published.loss.text
    assert 190 < running.view().frames < 200
    peer.greet()
    peer.steps(200, *[1.0] * 3)
    running.peer(run="next").attach()
    assert running.shows("next", stored=1)


def test_a_fault_of_ours_costs_one_entry(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An entry that cannot be applied is counted and told once; the next one is applied."""
    running, peer = attached(start())
    apply = running.engine._state.apply_to

    def sometimes(name: str, entry: Entry, number: int) -> Any:
        if isinstance(entry.body, Received) and entry.body.envelope.seq in (3, 4):
            raise ZeroDivisionError
        return apply(name, entry, number)

    monkeypatch.setattr(running.engine._state, "apply_to", sometimes)
    peer.steps(0, 1.0, 1.0, 1.0, 1.0)
    running.shows(frames=2)

    assert running.published.num_apply_errors == 2
    assert [r.getMessage() for r in caplog.records if r.exc_info] == [
        "an entry of the log could not be applied (told once)"
    ]
    assert running.engine.is_alive()


def test_a_fault_in_the_loop_is_told(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine ends, says so, and its service learns of it: nothing half alive goes on."""
    running = start()
    monkeypatch.setattr(running.engine._housekeeping, "add", lambda now_ns, batch: 1 / 0)

    assert running.failed.wait(10)
    wait_until(lambda: not running.engine.is_alive())
    assert running.published.fault == "the engine failed; see the log"


def test_a_view_that_was_taken_stays(start: Start) -> None:
    """Readers in other threads see whole views, old or new."""
    running, peer = attached(start())
    peer.steps(0, 1.0)
    old = running.shows(frames=1)
    peer.steps(1, NAN)
    running.shows(frames=2)

    assert (old.frames, old.first_bad, old.alerts) == (1, None, ())


# What any client may do, in any order, with a restart anywhere: the counts must agree.

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("evict"), st.integers(1, 3)),
        st.tuples(st.just("drop"), st.integers(1, 3)),
        st.tuples(st.just("copy"), st.integers(0, 5)),
        st.tuples(st.just("garbage"), st.binary(max_size=40)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    min_size=3,
    max_size=12,
)


class Rank:
    """A client that forgets, drops and repeats; it knows what it produced."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.produced = 0
        self.low = 1  # the lowest record that it still has

    def put(self, seq: int, name: str = "x") -> None:
        self.peer.send_as(seq, self.low, Event(name=name, step=seq))

    def send(self, count: int) -> None:
        for _ in range(count):
            self.produced += 1
            self.put(self.produced)

    def drop(self, count: int) -> None:
        """Produce records that get lost on the line."""
        self.produced += count

    def evict(self, count: int) -> None:
        self.low = min(self.low + count, self.produced + 1)

    def copy(self, back: int) -> None:
        if self.produced:
            self.put(max(1, self.produced - back), "copy")

    def garbage(self, data: bytes) -> None:
        self.peer.send_raw(b"\x01" + data)

    def finish(self) -> None:
        """Send what is there until all is acknowledged; the last record is never evicted."""
        self.send(1)
        while (answer := self.peer.say(Beat())).acked < self.produced:
            if not any(answer.boot_id):  # its first gap since the start is to be told once more
                self.peer.greet()
            for seq in range(max(answer.acked + 1, self.low), self.produced + 1):
                self.put(seq)


@pytest.mark.slow
@given(actions=ACTIONS)
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_produced_is_stored_plus_lost(start: Start, actions: list[Any]) -> None:
    running = start()
    rank = Rank(running.peer())
    rank.peer.greet()
    for action, value in actions:
        if action == "restart":
            running = start(endpoint=running.endpoint)
            rank.peer.greet()
        else:
            getattr(rank, action)(value)
    rank.finish()
    running = start()  # one log for all examples: what is in it now is told by the next engine

    session = running.engine._state.sessions[rank.peer.session]
    assert session.num_stored + session.num_lost == session.acked == rank.produced
    assert session.num_lost < rank.low


def test_a_flood_of_hellos_of_one_session_is_one_session(start: Start) -> None:
    """A client may greet as often as it likes."""
    running = start()
    peer = running.peer()
    for _ in range(50):
        peer.greet()

    assert len(running.shows().attempts) == 1
    assert [type(entry.body) for entry in running.entries()] == [Began, Opened]


def test_a_record_spelt_at_length_survives_a_restart(start: Start) -> None:
    """msgpack allows several spellings of the same envelope; what was acknowledged stays."""
    running = start()
    peer = running.peer()
    peer.greet()
    raw = encode(Envelope(session=peer.session, seq=1, low=1, record=Event(name="x", step=1)))
    peer.send_raw(b"\x01\xdc\x00\x06" + raw[2:])
    peer.acked(1)

    running = start(endpoint=running.endpoint)

    assert peer.greet().acked == 1
    assert running.view().stored == 1


def test_a_log_line_survives_what_the_wire_allows(start: Start) -> None:
    """Keys unknown to this version, and numbers at their limits, are stored and found again."""
    running = start()
    peer = running.peer()
    peer.greet()
    fields = msgpack.unpackb(
        encode(Envelope(session=peer.session, seq=1, low=1, record=Bye(reason="x" * 512)))[1:]
    )
    fields[4] = (1 << 63) - 1
    fields[5]["new"] = "key"
    peer.send_raw(b"\x01" + msgpack.packb(fields))
    peer.acked(1)

    running = start(endpoint=running.endpoint)

    assert running.view().ranks[0].reason == "x" * 512


def test_lines_without_bytes_stop_the_engine_rather_than_lie(start: Start) -> None:
    """A record that would not be in the log must not be acknowledged."""
    running = start()
    envelope = Envelope(session=bytes(16), seq=1, record=Bye())

    with pytest.raises(AssertionError):
        running.store.log.append([LogEntry("gpt", Entry(1, Received(envelope)))])


@pytest.mark.slow
def test_a_checkpoint_that_finds_no_room_costs_no_record(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written once there is room; the records that it stands for are stored before."""
    monkeypatch.setattr(checkpointer, "RETRY_NS", 10**9)
    running = start(retention=RetentionPolicy(checkpoint_s=0.5))
    peer = running.peer().attach([f"l{i}" for i in range(3_000)])
    db = running.store.db
    db.execute(f"PRAGMA max_page_count={db.number('page_count') + 60}")
    for step in range(5):
        peer.stats(step, [1.0] * 3_000)
        time.sleep(0.2)
    wait_until(lambda: "no checkpoint can be written" in caplog.text)
    peer.acked(6)
    assert running.store.state.run("gpt") is None
    assert running.published.fault is None
    assert "nothing is acknowledged" not in caplog.text

    db.execute("PRAGMA max_page_count=1000000")
    wait_until(lambda: "checkpoints can be written again" in caplog.text)
