"""Which ranks a step waits for, at a cost that does not grow with the world (S22)."""

from __future__ import annotations

from typing import Any

from gradwatch_server.core.frames.assembler import Assembler
from tests.support.core import Cluster


class Item:
    """A record without anything."""

    num_bytes = 8


class CountingSet(set[int]):
    """Counts how often it is gone through."""

    walked = 0

    def __iter__(self) -> Any:
        self.walked += len(self)
        return super().__iter__()


def test_ranks_are_gone_through_once_a_step() -> None:
    ranks = CountingSet(range(500))
    open_steps: Assembler[Item] = Assembler()
    closed = 0
    for step in range(4):
        for rank in range(500):
            open_steps.add(rank, Item(), step=(0, step), now_ns=step)
            closed += len(list(open_steps.close(ranks, step, 500)))

    assert closed == 4
    assert ranks.walked <= 8 * 500


def test_a_rank_that_never_sends_costs_nothing_per_step() -> None:
    ranks = CountingSet(range(500))
    open_steps: Assembler[Item] = Assembler()
    for step in range(200):
        open_steps.add(0, Item(), step=(0, step), now_ns=step * 6_000_000_000)
        list(open_steps.close(ranks, step * 6_000_000_000, 500))

    assert open_steps.last_closed == (0, 198)
    assert ranks.walked <= 2 * 500


def test_ranks_that_never_attached_are_not_gone_through() -> None:
    """A HELLO that claims 65,536 ranks costs no more than one that claims two."""
    job = Cluster(world=65_536, names=("a",))
    job.open(0)
    job.declare(0)
    job.attempt.ranks.alive = CountingSet(job.attempt.ranks.alive)
    for step in range(50):
        job.stats(0, step)

    assert job.attempt.ranks.alive.walked == 0
    assert job.closed == []  # the others may still attach


def test_a_rank_that_comes_while_a_step_waits_is_waited_for() -> None:
    job = Cluster(world=3, names=("a",))
    for rank in (0, 1):
        job.open(rank)
        job.declare(rank)
    job.wait(11)
    job.stats(0, 0)
    job.open(2)
    job.declare(2)
    job.stats(1, 0)
    assert job.closed == []
    job.stats(2, 0)

    assert job.frame.coverage == 1.0
