"""Memory of all attempts is bounded: the engine decides whose goes, in the log."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.budgets import Budgets
from gradwatch_server.core.entries import Entry, FramesClosed, ManifestsDropped, Received
from gradwatch_server.engine.batch import Batch
from gradwatch_server.engine.core_memory import CoreMemory
from gradwatch_wire import Envelope
from tests.support.core import Cluster, stats_of
from tests.support.engine import Start
from tests.support.peer import NewPeer
from tests.support.waiting import wait_until
from tests.support.whole_state import WholeState

KIB = 1 << 10
LAYERS = 1_000


class Rounds:
    """Rounds of an engine without its thread and its store."""

    def __init__(self, **limits: int) -> None:
        self.state = WholeState()
        # Smaller than can be set: what is tested is not how much fits.
        self.use = BudgetUse(Budgets.model_construct(**Budgets().model_dump() | limits))
        self.memory = CoreMemory(self.state, self.use)
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
        self.memory.note_changed(runs)
        batch = Batch()
        self.memory.add(1, batch)
        for line in batch.lines:
            self.bodies.append(line.entry.body)
            self.state.apply(line.entry)


def test_the_attempt_with_most_closes_its_oldest_steps() -> None:
    """A little more than has to, so that not each round decides anew; who holds little keeps it."""
    rounds = Rounds(open_frames_bytes=512 * KIB)
    small, large = rounds.job("small"), rounds.job("large")
    rounds.stats(small, *range(5))
    for step in range(200):
        rounds.stats(large, step)
        rounds.round()
    rounds.round("large")

    assert {body.run for body in rounds.bodies} == {"large"}
    assert 20 < len(rounds.bodies) < 70
    assert small.closed == []
    held = small.attempt.open.num_bytes + large.attempt.open.num_bytes
    assert held <= 512 * KIB
    use = rounds.use["open_frames_bytes"]
    assert (use.used, use.num_evicted) == (held, large.attempt.num_frames)
    assert rounds.use["open_frames_bytes_per_attempt"].used == large.attempt.open.num_bytes


@pytest.mark.slow
def test_a_step_of_many_ranks_is_not_the_first_to_go() -> None:
    rounds = Rounds(open_frames_bytes=512 * KIB)
    wide = rounds.job("wide", world=3_000, sessions=2_049)
    for rank in range(35):
        rounds.stats(wide, 0, rank=rank)
    greedy = rounds.job("greedy")
    assert wide.attempt.shares == 3
    for step in range(60):
        rounds.stats(greedy, step)

    assert {body.run for body in rounds.bodies} == {"greedy"}
    assert wide.closed == []


def test_the_session_with_most_loses_its_oldest_manifests() -> None:
    """The last one of others stays, although they have been there longer."""
    rounds = Rounds(manifests_bytes=256 * KIB)
    small, greedy = rounds.job("small"), rounds.job("greedy")
    for number in range(2, 100):
        greedy.declare(1, greedy.names[: LAYERS - number], manifest_id=number)
        rounds.round("greedy")
    rounds.round("greedy")

    assert {body.session for body in rounds.bodies} == {greedy.sessions[1]}
    assert all(len(own.manifests) == 1 for own in small.attempt.sessions.values())
    used = small.attempt.manifests.num_bytes + greedy.attempt.manifests.num_bytes
    assert used <= 256 * KIB
    use = rounds.use["manifests_bytes"]
    assert use.used == used
    assert use.num_evicted == greedy.attempt.manifests.num_dropped.total() > 50
    assert list(greedy.attempt.sessions[1].manifests)[-1] == 99


@pytest.mark.parametrize("many", [2, 64])
def test_ranks_that_have_the_same_layers_share_them(many: int) -> None:
    rounds = Rounds(manifests_bytes=10 * 8 * LAYERS + 64 * 2 * KIB)
    rounds.job("wide", world=many, sessions=many)

    assert rounds.bodies == []


def test_what_has_left_memory_is_not_counted() -> None:
    """Attempts that are retired, and runs that are forgotten."""
    rounds = Rounds()
    job = rounds.job("gpt")
    rounds.stats(job, 0, 1)
    assert rounds.use["open_frames_bytes"].used == job.attempt.open.num_bytes > 0
    for rank in range(2):
        job.bye(rank)
    job.open(0, job="later")
    rounds.round("gpt")

    assert rounds.use["open_frames_bytes"].used == 0
    assert rounds.use["manifests_bytes"].used == 0
    del rounds.state.runs["gpt"]
    rounds.round("gpt")
    assert rounds.use["layers_bytes_per_attempt"].used == 0


@pytest.mark.slow
def test_an_engine_keeps_to_it_and_its_log_says_the_same(start: Start, peers: NewPeer) -> None:
    budgets = Budgets(open_frames_bytes=4 << 20, open_frames_bytes_per_attempt=1 << 30)
    running = start(budgets=budgets)
    names = [f"layer {i}" for i in range(30_000)]
    peer = peers(running.endpoint, world=2).attach(names)
    for step in range(40):
        peer.stats(step, [1.0] * len(names))
        peer.acked()
    peer.declare(names[:1_000], manifest_id=2)
    running.shows(stored=42)
    wait_until(lambda: running.engine.budget_use["open_frames_bytes"].num_evicted, "steps closed")
    closed = [e.body for e in running.entries() if isinstance(e.body, FramesClosed)]
    running.engine.stop()
    again = WholeState(64)
    for entry in running.entries():
        again.apply(entry)

    assert {(body.run, body.attempt) for body in closed} == {("gpt", 1)}
    attempt, live = again.runs["gpt"].current, running.engine._state.runs["gpt"].current
    assert attempt.num_frames == live.num_frames > 15
    assert attempt.open.num_bytes == live.open.num_bytes <= 5 << 20
    assert running.published.num_apply_errors == 0


def test_both_entries_are_told_to_what_follows_the_log(start: Start, peers: NewPeer) -> None:
    """A run that is only of another name does not see them."""
    running = start()
    peer = peers(running.endpoint).attach()
    running.shows(stored=1)
    state = running.engine._state
    (session,) = state.sessions

    run = state.runs["gpt"]
    assert run.touched_by(Entry(1, FramesClosed("gpt", 1, 0))) == {1}
    assert run.touched_by(Entry(1, ManifestsDropped(session, 0))) == {1}
    assert run.touched_by(Entry(1, ManifestsDropped(bytes(16), 0))) == {1}
    envelope = Envelope(session=session, seq=2, low=1, record=stats_of(0, [1.0, 1.0]))
    assert run.touched_by(Entry(1, Received(envelope))) == {1}
    peer.close()
