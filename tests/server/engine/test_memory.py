"""Memory of runs is bounded: the engine decides what leaves it, in the log."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_server.budgets import Budgets, BudgetUse
from gradwatch_server.core.entries import (
    Body,
    Entry,
    Forgotten,
    FramesClosed,
    Lost,
    ManifestsDropped,
    Opened,
    Received,
)
from gradwatch_server.engine.memory import EvictionOrder, RunMemory, candidates
from gradwatch_wire import Bye, Envelope, Event, Hello, Record
from tests.support.core import Cluster
from tests.support.engine import Start
from tests.support.records import manifest_of, stats_of
from tests.support.waiting import wait_until
from tests.support.whole_state import WholeState

MIB = 1 << 20
SECOND = 1_000_000_000
LAYERS = 1_000

MARK = Event(name="mark", step=0)
FRAME = (manifest_of(["a"]), stats_of(0, [1.0]))


class Rounds:
    """Rounds of an engine without its thread and its store."""

    def __init__(self, total_bytes: int = 1 << 40) -> None:
        self.state = WholeState()
        # Smaller than can be set: what is tested is not how much fits.
        budgets = Budgets.model_construct(total_bytes=total_bytes, run_bytes=1 << 40)
        self.use = BudgetUse(budgets)
        self.memory = RunMemory(self.state, (), self.use)
        self.bodies: list[Any] = []

    def job(self, run: str, world: int = 2, sessions: int = 2) -> Cluster:
        job = Cluster(world=world, run=run, names=[f"{i}" for i in range(LAYERS)], state=self.state)
        for rank in range(sessions):
            job.open(rank)
            job.declare(rank)
        self.round(run)
        return job

    def stats(self, job: Cluster, *steps: int, rank: int = 0) -> None:
        for step in steps:
            job.stats(rank, step)
        self.round(job.run)

    def round(self, *runs: str) -> None:
        for run in runs:
            self.memory.mark_changed(run)
        decided = list(self.memory.begin_round(()))
        self.memory.report()
        for _, body in decided:
            self.bodies.append(body)
            self.state.apply(Entry(1, body))


class Story:
    """A state, told a second at a time."""

    def __init__(self) -> None:
        self.state = WholeState()
        self._now_ns = 0
        self._num_sessions = 0

    def apply(self, body: Body) -> None:
        self._now_ns += SECOND
        self.state.apply(Entry(self._now_ns, body))

    def attach(self, run: str, *records: Record, job: str = "") -> bytes:
        self._num_sessions += 1
        session = self._num_sessions.to_bytes(16, "big")
        self.apply(Opened(session, Hello(run=run, rank=0, world=1, job=job)))
        for seq, record in enumerate(records, 1):
            self.apply(Received(Envelope(session=session, seq=seq, low=1, record=record)))
        return session

    def found(self, **runs_of_owner: int) -> list[tuple[EvictionOrder, str, int]]:
        """Return what may go."""
        found = candidates(self.state.runs.values(), runs_of_owner)
        return [(own.order, own.run, own.attempts) for own in found]


def test_what_was_never_heard_goes_first_then_what_ended() -> None:
    """A run that lives and sent a record never does."""
    story = Story()
    story.attach("trains", *FRAME)
    story.attach("begins", MARK)
    story.attach("ended-first", *FRAME, Bye())
    story.attach("ended-last", *FRAME, Bye())
    story.attach("frameless", MARK, Bye())
    story.attach("empty")
    lost = story.attach("lost")
    story.apply(Lost(lost))

    assert story.found() == [
        (EvictionOrder.NEVER_HEARD, "empty", 1),
        (EvictionOrder.NEVER_HEARD, "lost", 1),
        (EvictionOrder.ENDED_EMPTY, "frameless", 1),
        (EvictionOrder.ENDED, "ended-first", 1),
        (EvictionOrder.ENDED, "ended-last", 1),
    ]


def test_the_client_with_most_pays_first() -> None:
    story = Story()
    for run in ("a", "b", "c"):
        story.attach(run)

    assert [run for _, run, _ in story.found(b=7, c=9)] == ["c", "b", "a"]


def test_attempts_go_up_to_the_oldest_that_lives() -> None:
    story = Story()
    empty = story.attach("gpt", job="1")
    story.apply(Lost(empty))
    story.attach("gpt", *FRAME, Bye(), job="2")
    story.attach("gpt", *FRAME, job="3")

    assert story.found() == [(EvictionOrder.NEVER_HEARD, "gpt", 1), (EvictionOrder.ENDED, "gpt", 2)]
    for _, run, attempts in story.found():
        story.apply(Forgotten(run, attempts))
    assert [attempt.number for attempt in story.state.runs["gpt"].attempts] == [3]


def test_the_attempt_with_most_closes_its_oldest_steps() -> None:
    """A little more than has to, so that not each round decides anew; who holds little keeps it."""
    rounds = Rounds(total_bytes=32 * MIB)
    share = 12 * MIB
    small, large = rounds.job("small"), rounds.job("large")
    rounds.stats(small, *range(5))
    for step in range(4_000):
        rounds.stats(large, step)
    rounds.round("large")

    assert {type(body) for body in rounds.bodies} == {FramesClosed}
    assert {body.run for body in rounds.bodies} == {"large"}
    assert 20 < len(rounds.bodies) < 200
    assert small.closed == []
    held = small.attempt.open.num_bytes + large.attempt.open.num_bytes
    assert held <= share
    use = rounds.use["total_bytes"]
    assert use.num_evicted == large.attempt.num_frames
    assert use.used == sum(run.sessions_bytes for run in rounds.state.runs.values()) + sum(
        own.frames_bytes for own in (small.attempt, large.attempt)
    )


@pytest.mark.slow
def test_a_step_of_many_ranks_is_not_the_first_to_go() -> None:
    rounds = Rounds(total_bytes=4 * MIB)
    wide = rounds.job("wide", world=3_000, sessions=2_049)
    for rank in range(60):
        rounds.stats(wide, 0, rank=rank)
    greedy = rounds.job("greedy")
    for step in range(300):
        rounds.stats(greedy, step)

    closed = {body.run for body in rounds.bodies if isinstance(body, FramesClosed)}
    assert closed == {"greedy"}
    assert wide.closed == []


def test_the_session_with_most_loses_its_oldest_manifests() -> None:
    """The last one of others stays, although they have been there longer."""
    rounds = Rounds(total_bytes=32 * MIB)
    share = 4 * MIB
    small, greedy = rounds.job("small"), rounds.job("greedy")
    for number in range(2, 900):
        greedy.declare(1, greedy.names[: LAYERS - number], manifest_id=number)
        rounds.round("greedy")
    rounds.round("greedy")

    assert {body.session for body in rounds.bodies} == {greedy.sessions[1]}
    assert all(len(session.manifests) == 1 for session in small.attempt.sessions.values())
    used = small.attempt.manifests.num_bytes + greedy.attempt.manifests.num_bytes
    assert used <= share
    num_dropped = greedy.attempt.manifests.num_dropped
    assert rounds.use["total_bytes"].num_evicted == num_dropped.total() > 50
    assert list(greedy.attempt.sessions[1].manifests)[-1] == 899


def test_ended_runs_go_where_all_take_too_much() -> None:
    rounds = Rounds(total_bytes=12 * MIB)
    ended, live = rounds.job("ended", 1, 1), rounds.job("live", 1, 1)
    rounds.stats(ended, 0)
    ended.bye(0)
    rounds.stats(live, 0)
    rounds.job("another", 1, 1)

    assert list(rounds.memory.gone()) == [("ended", Forgotten("ended", 1))]
    assert rounds.memory.leaves(rounds.state.runs["ended"])
    assert rounds.memory.leaving == {ended.sessions[0]}


def test_what_has_left_memory_is_not_counted() -> None:
    """Attempts that are retired, and runs that are forgotten."""
    rounds = Rounds()
    job = rounds.job("gpt")
    rounds.stats(job, 0, 1)
    assert (rounds.use["run_bytes"].used or 0) > LAYERS * 5_000
    for rank in range(2):
        job.bye(rank)
    job.open(0, job="later")
    rounds.round("gpt")

    assert 0 < (rounds.use["run_bytes"].used or 0) < LAYERS * 1_000
    del rounds.state.runs["gpt"]
    rounds.round("gpt")
    assert (rounds.use["run_bytes"].used, rounds.use["total_bytes"].used) == (0, 0)
    assert rounds.use["runs"].used == 0


@pytest.mark.slow
def test_an_engine_keeps_to_it_and_its_log_says_the_same(start: Start) -> None:
    running = start(budgets=Budgets(total_bytes=16 * MIB))
    names = [f"layer {i}" for i in range(1_000)]
    peer = running.peer(world=2).attach(names)
    for step in range(900):  # within the time in which rank 1 is waited for
        peer.stats(step, [1.0] * len(names))
        if step % 20 == 0:
            peer.acked()
    peer.acked()
    running.shows(stored=901)
    wait_until(lambda: running.engine.budget_use["total_bytes"].num_evicted, "steps closed")
    closed = [e.body for e in running.entries() if isinstance(e.body, FramesClosed)]
    running.engine.stop()
    again = WholeState(64)
    for entry in running.entries():
        again.apply(entry)

    assert {(body.run, body.attempt) for body in closed} == {("gpt", 1)}
    attempt, live = again.runs["gpt"].current, running.engine._state.runs["gpt"].current
    assert attempt.num_frames == live.num_frames > 15
    assert attempt.open.num_bytes == live.open.num_bytes <= 7 * MIB
    assert running.published.num_apply_errors == 0


def test_a_run_says_which_attempts_entries_changed() -> None:
    state = WholeState()
    job = Cluster(names=("a",), state=state).start()
    run, session = state.runs["gpt"], job.sessions[0]
    envelope = Envelope(session=session, seq=2, low=1, record=stats_of(0, [1.0]))
    for body in (FramesClosed("gpt", 1, 0), ManifestsDropped(session, 0), Received(envelope)):
        run.touched.clear()
        run.apply(Entry(1, body))
        assert run.touched == {1}
    run.touched.clear()
    run.apply(Entry(1, ManifestsDropped(bytes(16), 0)))
    assert run.touched == set()
