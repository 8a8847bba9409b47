"""Admission when there is no room, and eviction for it, over real sockets."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import zmq

from gradwatch_server.budgets import Budgets, BudgetUse
from gradwatch_server.core.entries import Entry, Forgotten, Lost, Opened
from gradwatch_server.engine import intake
from gradwatch_server.engine.admission import Admission, AdmissionResult
from gradwatch_server.engine.batch import Batch
from gradwatch_server.engine.housekeeping import Housekeeping
from gradwatch_server.engine.memory import MAX_ATTEMPTS, RunMemory
from gradwatch_server.engine.publishing import PublishedState
from gradwatch_server.ingest.inbox import Inbox
from gradwatch_server.ingest.message import IngestMessage
from gradwatch_wire import Ack, Beat, Bye, Envelope, Hello, Refuse, Welcome, decode, encode
from gradwatch_wire.health import RankState
from gradwatch_wire.session.driver import send_due
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session, SessionPhase
from tests.support.engine import Start
from tests.support.peer import Peer
from tests.support.records import manifest_of, stats_of
from tests.support.waiting import PATIENCE_S
from tests.support.whole_state import WholeState


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def forgotten(running: Any) -> list[tuple[str, int]]:
    bodies = (entry.body for entry in running.entries())
    return [(body.run, body.attempts) for body in bodies if isinstance(body, Forgotten)]


def sweep(endpoint: str, count: int) -> None:
    """Attach to many runs, and leave it at that."""
    for number in range(count):
        Peer(endpoint, run=f"sweep-{number}").greet()


@pytest.mark.slow
def test_a_sweep_of_names_shuts_nobody_out(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Its runs go for the next; what trains and what ended with frames stays (S20)."""
    running = start(budgets=Budgets(runs=8))
    trains, ended = (running.peer(run=run).attach() for run in ("trains", "ended"))
    for peer in (trains, ended):
        peer.steps(0, 1.0)
    ended.send(Bye())
    ended.acked()
    sweep(running.endpoint, 40)
    fresh = running.peer(run="fresh").attach()
    fresh.steps(0, 1.0)
    trains.steps(1, 1.0)

    running.shows("fresh", frames=1)
    running.shows("trains", frames=2)
    assert "ended" in running.published.revisions
    assert len(running.published.revisions) == 8
    use = running.engine.budget_use["runs"]
    assert (use.used, use.num_refused) == (8, 0)
    assert use.num_evicted == len(forgotten(running)) == 35
    assert caplog.text.count("left memory to make room") == 1
    assert running.published.num_apply_errors == 0


def test_a_run_is_refused_only_where_all_train(start: Start) -> None:
    running = start(budgets=Budgets(runs=2))
    trains = [running.peer(run=run).attach() for run in ("one", "two")]
    for peer in trains:
        peer.steps(0, 1.0)
        running.shows(peer.greeting.run, frames=1)

    third = running.peer(run="three")
    reason = "2 runs live, as many as budget runs = 2 allows"
    assert third.say(third.greeting) == Refuse(reason=reason)
    assert running.engine.budget_use["runs"].num_refused == 1
    assert running.ingest.refused == {"runs": 1}

    trains[0].send(Bye())
    trains[0].acked()
    third.attach()
    running.shows("three")
    assert forgotten(running) == [("one", 1)]
    trains[1].steps(1, 1.0)


def test_a_run_that_was_evicted_while_it_lived_begins_anew(start: Start) -> None:
    running = start(budgets=Budgets(runs=1))
    paused = running.peer(run="paused")
    paused.greet()
    other = running.peer(run="other").attach()
    running.shows("other")
    assert "paused" not in running.published.revisions

    answer = paused.say(Beat(last_step=3))
    assert answer == Ack(boot_id=intake.NO_BOOT, acked=0)
    other.send(Bye())
    other.acked()
    assert paused.greet().acked == 0
    paused.declare()
    paused.steps(0, 1.0)
    running.shows("paused", frames=1, attempt=2)
    assert set(running.published.last_seen) == {paused.session}


def test_a_client_that_was_evicted_goes_on_by_itself(
    start: Start, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    running = start(budgets=Budgets(runs=1))
    session = Session(os.urandom(16), Hello(run="paused", rank=0, world=1), Outbox(1 << 20))
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(running.endpoint)

    def send(message: bytes) -> bool:
        socket.send(message)
        return True

    def pump(until: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < deadline_s
            send_due(session, send, time.monotonic())
            if socket.poll(20):
                session.receive(decode(socket.recv()), time.monotonic())

    pump(lambda: session.phase is SessionPhase.OPEN)
    running.peer(run="other").greet()
    running.shows("other")
    assert "paused" not in running.published.revisions
    for record in (manifest_of(["a"]), stats_of(0, [1.0])):
        session.source.append(record, time.time_ns())
    pump(lambda: session.is_drained)
    socket.close()

    view = running.shows("paused", frames=1)
    assert (view.stored, view.lost) == (2, 0)


def test_evictions_hold_over_a_restart(start: Start) -> None:
    running = start(budgets=Budgets(runs=3))
    sweep(running.endpoint, 7)
    running.shows("sweep-6")
    before = set(running.published.revisions)

    running = start(endpoint=running.endpoint, budgets=Budgets(runs=3))

    assert set(running.published.revisions) == before
    assert running.engine.budget_use["runs"].used == 3


@pytest.mark.slow
def test_sessions_are_bounded_by_their_bytes(start: Start) -> None:
    """Empty runs go for those that send something (S21)."""
    running = start(budgets=Budgets.model_construct(total_bytes=1 << 19))
    trains = running.peer(run="trains").attach()
    trains.steps(0, 1.0)
    wide = {f"part-{number}": "\U0001f600" + "x" * 200 for number in range(30)}
    peer = running.peer()
    for number in range(60):
        peer.session = os.urandom(16)
        peer.greeting = Hello(run=f"wide-{number % 4}", rank=0, world=1, versions=wide)
        peer.greet()
    trains.steps(1, 1.0)

    running.shows("trains", frames=2)
    use = running.engine.budget_use["total_bytes"]
    assert use.used is not None
    assert 0 < use.used <= 1 << 19
    assert use.num_evicted > 10
    assert len(running.engine._state.sessions) < 20
    assert running.published.num_apply_errors == 0


def test_a_job_that_is_too_large_does_not_evict_itself(start: Start) -> None:
    """The ranks that there is no room for are refused."""
    running = start(budgets=Budgets.model_construct(run_bytes=3 << 18))
    peer = running.peer()
    answers = []
    for rank in range(20):
        peer.session = os.urandom(16)
        answers.append(peer.say(Hello(run="large", rank=rank, world=20)))

    kinds = [type(answer) for answer in answers]
    assert kinds == sorted(kinds, key=lambda kind: kind is Refuse)
    assert kinds.count(Welcome) > 10
    assert isinstance(answers[-1], Refuse)
    assert "budget run_bytes = 786432" in answers[-1].reason
    assert forgotten(running) == []


@pytest.mark.slow
def test_a_crash_loop_keeps_its_newest_attempts(start: Start) -> None:
    """Older ones leave memory while it goes on; numbers go on too (S28)."""
    running = start(budgets=Budgets(attempts_per_min=1_000))
    peer = running.peer()
    for job in range(90):
        peer.session, peer.seq = os.urandom(16), 0
        peer.greeting = Hello(run="crash", rank=0, world=1, job=str(job))
        peer.greet()
        peer.send(Bye(reason="exception"))
        peer.acked()
    running.peer(run="crash", job="last").attach().steps(0, 1.0)

    view = running.shows("crash", attempt=91, frames=1)
    assert [attempt.number for attempt in view.attempts] == list(range(28, 92))
    assert len(running.engine._intake.peers) == MAX_ATTEMPTS
    assert running.published.num_apply_errors == 0


@pytest.mark.slow
def test_an_attempt_that_trains_on_keeps_a_crash_loop_within_bounds(start: Start) -> None:
    """The looping job is told to use another name."""
    running = start(budgets=Budgets(attempts_per_min=1_000))
    trains = running.peer(run="shared", job="long").attach()
    peer = running.peer()
    for job in range(MAX_ATTEMPTS):
        peer.session, peer.seq = os.urandom(16), 0
        answer = peer.say(Hello(run="shared", rank=0, world=1, job=str(job)))
        if isinstance(answer, Welcome):
            peer.send(Bye(reason="exception"))
            peer.acked()

    assert isinstance(answer, Refuse)
    assert "give this job a run of its own" in answer.reason
    trains.steps(0, 1.0)
    running.shows("shared", frames=1, attempt=1)


def test_a_run_that_is_new_begins_no_more_attempts_in_one_round_than_may_live() -> None:
    ingest = mock.create_autospec(Inbox, instance=True, refused=Counter())
    state, use = WholeState(), BudgetUse(Budgets(attempts_per_min=100))
    admission = Admission(ingest, state, (), RunMemory(state, (), use), use)
    verdicts = []
    for job in range(MAX_ATTEMPTS + 2):
        hello = Hello(run="new", rank=0, world=1, job=str(job))
        envelope = Envelope(session=os.urandom(16), record=hello)
        message = IngestMessage(b"peer", envelope, encode(envelope))
        verdicts.append(admission.judge(message, hello, 0))

    assert Counter(verdicts) == {AdmissionResult.ADMITTED: MAX_ATTEMPTS, AdmissionResult.REFUSED: 2}


def test_a_run_begins_only_so_many_attempts_a_minute(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(budgets=Budgets(attempts_per_min=3))
    crash = running.peer()
    for job in range(3):
        crash.session = os.urandom(16)
        crash.greeting = Hello(run="crash", rank=0, world=2, job=str(job))
        crash.greet()
    crash.session = os.urandom(16)
    for _ in range(2):
        crash.send_as(0, 0, Hello(run="crash", rank=0, world=2, job="3"))
    assert crash.is_silent(0.3)

    running.peer(run="crash", rank=1, world=2, job="2").greet()
    running.peer(run="other").greet()
    assert running.shows("crash").attempt == 3
    assert running.engine.budget_use["attempts_per_min"].num_refused == 2
    assert caplog.text.count("begins more than 3 attempts a minute") == 1


def test_ranks_that_attach_at_once_begin_one_attempt(start: Start) -> None:
    running = start(budgets=Budgets(attempts_per_min=1))
    ranks = [running.peer(rank=rank, world=16) for rank in range(16)]
    for peer in ranks:
        peer.send_as(0, 0, peer.greeting)
    for peer in ranks:
        assert isinstance(peer.receive(), Welcome)

    assert len(running.shows().attempts) == 1


def test_nobody_ends_the_session_of_another(start: Start) -> None:
    """Not with its id, while it is connected; what it sends next is stored (S32)."""
    running = start()
    victim = running.peer().attach()
    victim.steps(0, 1.0)
    thief = running.peer(run="thief")
    thief.session = victim.session
    thief.send_as(victim.seq + 1, 1, Bye())
    thief.send_as(0, 0, Beat())
    thief.send_as(0, 0, victim.greeting)
    assert thief.is_silent(0.3)
    victim.steps(1, 1.0)

    view = running.shows(frames=2, stored=3)
    assert view.ranks[0].state is RankState.ALIVE
    assert running.ingest.refused == {"another peer": 3}


@pytest.mark.parametrize("is_gone", [True, False])
def test_another_connection_takes_up_a_session_that_is_gone_or_silent(
    start: Start, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    monkeypatch.setattr(intake, "SILENT_NS", 10**18 if is_gone else 200_000_000)
    running = start()
    first = running.peer().attach()
    second = running.peer()
    second.session, second.seq = first.session, first.seq
    if is_gone:
        first.close()
        second.greet()
    else:
        assert first.is_silent(0.3)
    second.steps(0, 1.0)

    running.shows(frames=1, stored=2)


def test_what_is_evicted_is_neither_lost_nor_forgotten_in_the_same_round() -> None:
    state, published, batch = WholeState(), PublishedState(), Batch()
    for number, run in enumerate(("silent", "old")):
        session = number.to_bytes(16, "big")
        state.apply(Entry(1, Opened(session, Hello(run=run, rank=0, world=1))))
        published.last_seen[session] = 1
    state.apply(Entry(2, Lost(bytes(15) + b"\x01")))
    housekeeping = Housekeeping(state, published, 0, session_timeout_s=1.0, runs_max_age_s=1.0)
    for run in state.runs:
        batch.add(run, 3, Forgotten(run, 1))
    housekeeping.add(10**12, batch)

    assert [line.entry.body for line in batch.lines if isinstance(line.entry.body, Lost)] == []
    assert len([line for line in batch.lines if isinstance(line.entry.body, Forgotten)]) == 2
    alone = Batch()
    housekeeping.add(2 * 10**12, alone)
    assert {type(line.entry.body) for line in alone.lines} >= {Lost, Forgotten}


def test_a_slow_round_lets_time_pass_in_fewer_runs_of_the_next() -> None:
    """Overdue frames of many runs may not hold up all others at once."""
    state, published = WholeState(), PublishedState()
    housekeeping = Housekeeping(state, published, 0, session_timeout_s=1.0, runs_max_age_s=1.0)

    def passed() -> int:
        batch = Batch()
        for number in range(200):
            housekeeping.hurry(f"run {number}")
        housekeeping.add(1, batch)
        return len(batch.lines)

    assert passed() == 64
    counts = []
    for fold_s in (1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        housekeeping.pace(fold_s)
        counts.append(passed())
    assert counts == [32, 16, 8, 9, 4, 2, 1, 1, 1]
    for _ in range(100):
        housekeeping.pace(0.0)
    assert passed() == 64
