"""Two jobs at once under one run name and without a job id: real DDP ranks, a real aggregator."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

RUN = "twice"


def has_attempts(aggregator: Aggregator, ranks: list[list[int]]) -> bool:
    known = [
        aggregator.get(f"/runs/{RUN}/health", params={"attempt": number}) for number in (1, 2, 3)
    ]
    found = [own.json()["ranks"] for own in known if own.is_success]
    return [[each["rank"] for each in own] for own in found] == ranks


@pytest.mark.exhaustive
def test_two_jobs_at_once_are_two_attempts_and_both_are_judged(
    aggregator: Aggregator, train: Train
) -> None:
    aggregator.start()
    sound = train(2, "--run", RUN, worker="meeting_worker.py")
    broken = train(2, "--run", RUN, "--broken", worker="meeting_worker.py")
    for job in (sound, broken):
        assert [job.line(rank) for rank in range(2)] == ["met", "met"]
    for job, rank, expected in (
        (sound, 0, [[0]]),
        (broken, 1, [[0], [1]]),
        (broken, 0, [[0], [0, 1]]),
        (sound, 1, [[0, 1], [0, 1]]),
    ):
        job.release_rank(rank)
        assert job.line(rank) == "attached"
        is_so = partial(has_attempts, aggregator, expected)
        wait_until(is_so, f"the ranks of each attempt are {expected}")
    for job in (sound, broken):
        job.release()
        assert [job.line(rank) for rank in range(2)] == ["trained", "trained"]
    live = "2 live jobs under this name: attempts 1, 2"
    wait_until(lambda: live in aggregator.health(RUN)["reasons"], live)
    for job in (sound, broken):
        job.release()
        job.wait()
    one, two = (
        aggregator.json(f"/runs/{RUN}/health", params={"attempt": number}) for number in (1, 2)
    )

    assert (one["status"], one["step"], one["window"]["coverage"]) == ("healthy", 9, 1.0)
    assert (two["status"], two["step"], two["window"]["coverage"]) == ("critical", 9, 1.0)
    assert one["first_bad"] is None
    assert two["first_bad"]["step"] == 0
