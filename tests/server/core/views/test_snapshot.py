"""Snapshots: what a reader holds stays what it was, whatever the engine does next."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.views.snapshot import RunView, view_run
from tests.support.core import Cluster


def frozen(value: Any) -> Any:
    """Return a deep copy in plain values, arrays as bytes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: frozen(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [frozen(item) for item in value]
    return repr(value)


def test_a_view_stays_as_it_was() -> None:
    """Records, layers, alerts, losses and a new attempt leave it alone."""
    job = Cluster(world=2, names=("a", "b")).start()
    for step in range(5):
        job.step(step, [1.0, 500.0])
    job.event(0, "mark")
    view = view_run(job.state.runs["gpt"])
    before = frozen(view)

    job.declare(0, ["a", "b", "c"], manifest_id=2)
    for step in range(5, 80):
        job.step(step, [math.nan, 1.0])
    job.event(0, "mark")
    job.gap(1, 3)
    job.lose(1)
    job.start()
    job.step(0)

    assert frozen(view) == before
    assert frozen(view_run(job.state.runs["gpt"])) != before


def test_a_view_cannot_be_changed() -> None:
    job = Cluster(names=("a",)).start()
    job.step(0)
    view = view_run(job.state.runs["gpt"])

    assert isinstance(view, RunView)
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.stored = 0  # type: ignore[misc]  # that is the point
    assert view.frame is not None
    for array in (view.frame.columns, view.frame.l2_min, view.series.score):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_ranks_are_in_order_and_attempts_in_a_line() -> None:
    """Ranks by number however they came; each attempt with when, how large and how far."""
    job = Cluster(world=3)
    for rank in (2, 0, 1):
        job.open(rank)
        job.declare(rank)
    job.step(0, math.nan)
    job.start()
    view = view_run(job.state.runs["gpt"])

    assert [rank.rank for rank in view.ranks] == [0, 1, 2]
    assert [(a.number, a.world, a.frames) for a in view.attempts] == [(1, 3, 1), (2, 3, 0)]
    assert view.attempts[0].first_bad is not None
    assert view.attempts[0].started_ns < view.attempts[1].started_ns
    assert view.created_ns == view.attempts[0].started_ns


def test_alerts_of_all_attempts_are_in_it_newest_first() -> None:
    """The current attempt's before those of the last."""
    job = Cluster(names=("a",)).start()
    for step in (0, 10):
        job.step(step, math.nan)
        for calm in (1, 2, 3):
            job.step(step + calm)
    job.start()
    job.step(2, math.nan)
    view = view_run(job.state.runs["gpt"])

    assert [(a.attempt, a.first_step) for a in view.alerts] == [(2, 2), (1, 10), (1, 0)]


def test_what_is_taken_over_of_the_last_view_is_as_it_is() -> None:
    job = Cluster(world=3, names=("a", "b")).start()
    before: list[RunView] = []

    def look(what: str) -> None:
        run = job.state.runs["gpt"]
        fresh = view_run(run, job.state.rules)
        taken = view_run(run, job.state.rules, before[-1] if before else None)
        assert frozen(taken) == frozen(fresh), what
        assert [other.attempt for other in taken.others] == [
            other.attempt for other in fresh.others
        ]
        for own, other in zip(taken.others, fresh.others, strict=True):
            assert (own.alerts, own.attempts) == (other.alerts, other.attempts), what
        before.append(taken)

    look("start")
    for step in range(6):
        job.step(step, [1.0, 500.0 if step % 2 else math.nan])
        look(f"step {step}")
    job.event(0, "mark")
    look("event")
    job.gap(1, 3)
    look("gap")
    job.declare(0, ["a", "b", "c"], manifest_id=2)
    look("layers")
    job.lose(1)
    look("lost")
    job.start()
    look("attempt")
    job.step(0)
    look("its step")


def test_only_the_ranks_that_changed_are_made_anew() -> None:
    """S22: of thousands one sends. Of a run of which nothing changed the view stays."""
    job = Cluster(world=300, names=("a",)).start()
    run, rules = job.state.runs["gpt"], job.state.rules
    before = view_run(run, rules)
    assert view_run(run, rules, before) is before

    job.event(7, "mark")
    after = view_run(run, rules, before)
    anew = [new.rank for old, new in zip(before.ranks, after.ranks, strict=True) if new is not old]
    assert anew == [7]
    assert after.attempts is before.attempts
    assert after.names is before.names


def test_the_lines_of_attempts_are_made_once() -> None:
    """S28: of thousands that a job began, each view of one lists all."""
    job = Cluster(names=("a",)).start()
    job.step(0)
    for _ in range(20):
        job.start()
    before = view_run(job.state.runs["gpt"], job.state.rules)
    job.step(1)
    after = view_run(job.state.runs["gpt"], job.state.rules, before)

    assert len(after.others) > 3
    assert all(other.attempts is after.attempts for other in after.others)
    anew = [new.number for new in after.attempts if new not in before.attempts]
    assert anew == [21]
    assert all(any(new is old for old in before.attempts) for new in after.attempts[:-1])
