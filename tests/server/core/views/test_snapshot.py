"""Snapshots: what a reader holds stays what it was, whatever the engine does next."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.views.snapshot import RunView, view_run


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


def test_a_view_stays_as_it_was(cluster: Any) -> None:
    """Records, layers, alerts, losses and a new attempt leave it alone."""
    job = cluster(world=2, names=("a", "b")).start()
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


def test_a_view_cannot_be_changed(cluster: Any) -> None:
    """Neither its fields nor its arrays."""
    job = cluster(names=("a",)).start()
    job.step(0)
    view = view_run(job.state.runs["gpt"])

    assert isinstance(view, RunView)
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.stored = 0  # type: ignore[misc]  # that is the point
    assert view.frame is not None
    for array in (view.frame.columns, view.frame.l2_min, view.series.score):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_ranks_are_in_order_and_attempts_in_a_line(cluster: Any) -> None:
    """Ranks by number however they came; each attempt with when, how large and how far."""
    job = cluster(world=3)
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


def test_alerts_of_all_attempts_are_in_it_newest_first(cluster: Any) -> None:
    """The current attempt's before those of the last."""
    job = cluster(names=("a",)).start()
    for step in (0, 10):
        job.step(step, math.nan)
        for calm in (1, 2, 3):
            job.step(step + calm)
    job.start()
    job.step(2, math.nan)
    view = view_run(job.state.runs["gpt"])

    assert [(a.attempt, a.first_step) for a in view.alerts] == [(2, 2), (1, 10), (1, 0)]
