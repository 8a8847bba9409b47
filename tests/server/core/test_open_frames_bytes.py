"""Memory of steps that wait is bounded by run: the oldest close early beyond it (S24)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gradwatch_server.budgets import Budgets, LoggedBudgets
from gradwatch_server.core.entries import FramesClosed
from gradwatch_server.core.frames.step_order import FAR
from gradwatch_wire import Column
from gradwatch_wire.names import Label
from tests.server.core.test_saved_state import restart
from tests.support.core import Cluster

LAYERS = 1_000
RECORD = 1_000 + 8 * LAYERS
"""At least what one of them takes."""

LIMIT = 20 * RECORD
NORMS = [1.0] * LAYERS


def limited(job: Any, limit: int = LIMIT) -> Any:
    """Let the run hold so much from now on."""
    run_bytes = -(-8 * limit // 3)
    job.budgets(**Budgets().logged().model_dump() | {"run_bytes": run_bytes})
    return job


def total(job: Any) -> int:
    """Return how many steps closed early."""
    assert set(job.attempt.open.num_closed_early) <= {"run_bytes"}
    return int(job.attempt.open.num_closed_early.total())


def send(job: Any, kind: str, number: int) -> None:
    """Send one record of rank 0 that no other rank has anything for."""
    if kind == "gains":
        job.gains(0, number, *NORMS)
    elif kind == "held":  # each of another rank, and far from all others
        job.stats(number, (number + 1) * 2 * FAR, NORMS)
    else:
        job.stats(0, number if kind == "up" else 10_000 - number, NORMS)


@pytest.mark.parametrize("kind", ["up", "down", "gains", "held"])
def test_what_waits_never_takes_more_than_its_budget(kind: str) -> None:
    """Steps that go on, or back, of one rank of several; also of gains, and what is held."""
    job = Cluster(world=64, names=[f"layer {i}" for i in range(LAYERS)])
    for rank in range(64):
        job.open(rank)
        job.declare(rank)
    limited(job)
    sizes = []
    for number in range(60):
        send(job, kind, number)
        sizes.append(job.attempt.open.num_bytes)

    assert max(sizes) <= LIMIT
    assert sizes[9] >= 10 * RECORD  # what fits waits
    assert total(job) > 0
    if kind in ("up", "down"):
        assert job.frame.coverage == 1 / 64
        assert job.attempt.num_frames == total(job)


def test_the_oldest_go_and_the_newest_are_complete() -> None:
    """A rank that is far behind misses the first ones, and no others."""
    job = limited(Cluster(world=2, names=[f"layer {i}" for i in range(LAYERS)]).start())
    for step in range(30):
        job.stats(0, step, NORMS)
    closed = total(job)
    for step in range(30):
        job.stats(1, step, NORMS)

    assert 0 < closed < 20
    assert job.closed == list(range(30))
    assert job.attempt.open.num_bytes == 0
    assert job.health()["records"]["late"] == closed
    assert job.frame.coverage == 1.0


def test_little_stays_where_something_else_takes_much() -> None:
    """Frames that wait are not paid for what gains take, nor the other way round."""
    job = limited(Cluster(world=2, names=("a",)).start())
    for step in range(5):
        job.stats(0, step)
    for step in range(60):
        job.gains(0, step, *NORMS)

    assert job.closed == []
    assert job.attempt.open.num_bytes <= LIMIT


def test_a_log_without_budgets_means_what_it_did() -> None:
    job = Cluster(world=2, names=[f"layer {i}" for i in range(LAYERS)]).start()
    for step in range(60):
        job.stats(0, step, NORMS)

    assert job.state.budgets == LoggedBudgets.unlimited()
    assert job.closed == []


@pytest.mark.slow
def test_a_restart_anywhere_changes_nothing() -> None:
    job = limited(Cluster(world=2, names=("a", "b")).start(), 20_000)
    for number in range(12):
        job.stats(0, 3 * number, [1.0, float("nan") if number == 5 else 1.0], nans=[0, number])
        job.stats(0, 2 * number, loss=2.0, labels={Label.REDUCTION: "nöne"})
        job.stats(0, 10 * FAR * (number + 1), step_time_s=0.5)
        job.gains(0, number, 1.0, 2.0, 3.0)
    others = restart(job.entries)

    assert total(job) > 10
    sizes = {other.runs["gpt"].current.open.num_bytes for other in others}
    assert sizes == {job.attempt.open.num_bytes}


def test_what_all_hold_too_much_of_goes_by_an_entry() -> None:
    """The attempt that it names closes its oldest steps, others none; one that is gone nothing."""
    job = Cluster(world=2, names=("a",)).start()
    other = Cluster(world=2, names=("a",), run="other", state=job.state).start()
    for step in range(8):
        job.stats(0, step)
        other.stats(0, step)
    held = job.attempt.open.num_bytes
    for body in (("gpt", 1, held // 2), ("gpt", 7, 0), ("gone", 1, 0)):
        job.put(FramesClosed(*body))

    assert (job.closed, other.closed) == ([0, 1, 2, 3], [])
    assert job.attempt.open.num_bytes == held // 2
    assert job.attempt.open.num_closed_early == {"total_bytes": 4}


def test_what_a_record_takes_is_counted_by_what_it_holds() -> None:
    """Columns that are read, scalars and labels; what nobody reads is not kept."""
    job, steps = Cluster(world=2, names=("a",)).start(), itertools.count()

    def taken(**changes: Any) -> int:
        before = job.attempt.open.num_bytes
        job.stats(0, next(steps), **changes)
        return int(job.attempt.open.num_bytes - before)

    plain = taken()
    assert taken(l1=[1.0]) > plain
    assert taken(labels={"x": "y" * 1_000}) > plain + 1_000
    assert taken(labels={"x": "é" * 1_000}) > plain + 4_000
    unread = {"l2": Column.pack("<f8", [1.0]), "zz": Column.pack("<f8", [1.0] * 999)}
    assert taken(columns=unread) == plain
