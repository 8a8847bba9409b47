"""One rank's own gradient beside those of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.memory import Memories
from gradwatch_server.core.state_codec import decode, encode
from tests.support.core import Cluster

WORLD = 4


@pytest.fixture
def job() -> Callable[..., Any]:
    """Make a job; `job.go(rank, layer, factor)` is a step in which a local norm is multiplied."""

    def make(world: int = WORLD) -> Any:
        made: Any = Cluster(world=world, names=("a", "b", "c")).start()
        random = np.random.default_rng(0)
        state = {"step": 0}

        def go(rank: int = 0, layer: int = 0, factor: float = 1.0, **changes: Any) -> list[Any]:
            local = np.exp(random.normal(0.0, 0.3, (world, 3)))
            local[rank, layer] *= factor
            step = state["step"]
            state["step"] += 1
            told: list[Any] = []
            for own in range(world):
                norms = {"local_l2": local[own].tolist()} | changes
                told += made.stats(own, step, 1.0, **norms)
            return [(a.rule, str(a.state), str(a.severity)) for a in told]

        made.go = go
        return made

    return make


FIRING = [("rank_outlier", "firing", "warning")]


@pytest.mark.slow
def test_ranks_with_other_batches_raise_nothing(job: Callable[..., Any]) -> None:
    """Norms that scatter by a third, for 1,000 steps."""
    made = job()

    assert [made.go() for _ in range(1000)] == [[]] * 1000


def test_thirty_times_the_others_is_on_record_at_once(job: Callable[..., Any]) -> None:
    made = job()
    made.go()

    assert made.go(2, 1, 100.0) == [("rank_outlier", "firing", "info")]
    origin = made.alerts[-1].origin
    assert (origin.step, origin.rank, origin.layer) == (1, 2, "b")
    assert origin.value / origin.usual == pytest.approx(100.0, rel=0.8)
    assert " (other ranks " in made.alerts[-1].message


def test_a_rank_that_stays_above_is_told_of_at_the_sixth_frame(job: Callable[..., Any]) -> None:
    """The origin is the first of them."""
    made = job()
    for _ in range(5):
        made.go()
    told = [made.go(3, 2, 10.0) for _ in range(6)]

    assert told == [[]] * 5 + [FIRING]
    assert (made.alerts[-1].origin.step, made.alerts[-1].origin.rank) == (5, 3)


def test_ranks_that_take_turns_are_not_one_rank(job: Callable[..., Any]) -> None:
    made = job()

    assert [made.go(step % WORLD, 2, 10.0) for step in range(24)] == [[]] * 24


def test_it_is_resolved_after_eight_good_frames(job: Callable[..., Any]) -> None:
    made = job()
    made.go(2, 1, 100.0)
    for step in range(1000, 1010):
        made.step(step)
    assert [alert.state for alert in made.alerts] == ["firing"]


def test_eight_good_frames_resolve_it(job: Callable[..., Any]) -> None:
    made = job()
    made.go(2, 1, 100.0)
    told = [made.go() for _ in range(8)]

    assert told == [[]] * 7 + [[("rank_outlier", "resolved", "info")]]


def test_what_is_on_record_becomes_a_warning_where_it_lasts(job: Callable[..., Any]) -> None:
    made = job()
    told = [made.go(2, 1, 100.0) for _ in range(6)]

    assert told == [[("rank_outlier", "firing", "info")]] + [[]] * 4 + [FIRING]


def test_of_two_ranks_none_is_odd(job: Callable[..., Any]) -> None:
    made = job(2)

    assert [made.go(1, 1, 1000.0) for _ in range(10)] == [[]] * 10


def test_rounding_and_unknown_norms_are_not_judged(job: Callable[..., Any]) -> None:
    """A key's bias, and a layer that was unfrozen."""
    made = job()
    for step in range(10):
        for rank in range(WORLD):
            tiny = 1e-7 * (1000.0 if rank == 1 else 1.0)
            assert made.stats(rank, step, 1.0, local_l2=[1.0, tiny, -1.0]) == []


def test_what_it_remembers_outlives_a_restart(job: Callable[..., Any]) -> None:
    """Five of six frames before, one after."""
    made = job()
    for _ in range(5):
        made.go(3, 2, 10.0)
    closed = made.attempt.closed
    closed.memories, closed._rules = decode(encode(closed.memories), Memories), None

    assert made.go(3, 2, 10.0) == FIRING
