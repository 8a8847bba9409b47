"""Several attempts of a run that live at the same time: all are judged (S2)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.attempt_history import MAX_LIVE
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire import Event
from tests.support.core import Cluster

NAN = math.nan


def two_jobs(cluster: Any, world: int = 1) -> tuple[Any, Any]:
    """Return two jobs of one run, whose sessions say HELLO in turns."""
    one = cluster(world=world, names=("a",))
    two = cluster(world=world, names=("a",), state=one.state)
    for rank in range(world):
        for job, name in ((one, "17"), (two, "18")):
            two.now_ns = one.now_ns = max(one.now_ns, two.now_ns)
            job.open(rank, job=name)
            job.declare(rank)
    return one, two


def together(one: Any, two: Any) -> None:
    one.now_ns = two.now_ns = max(one.now_ns, two.now_ns)


@pytest.mark.slow
def test_two_jobs_of_one_run_are_two_attempts_and_both_are_judged() -> None:
    one, two = two_jobs(Cluster, world=4)
    attempts = one.state.runs["gpt"].attempts
    assert [sorted(attempt.sessions) for attempt in attempts] == [[0, 1, 2, 3], [0, 1, 2, 3]]

    two.step(0)
    together(one, two)
    one.step(0, NAN)
    together(one, two)
    two.step(1)

    assert [(alert.attempt, alert.rule) for alert in one.alerts] == [(1, "nonfinite")]
    assert [attempt.num_frames for attempt in attempts] == [1, 2]
    report = two.health()
    assert (report["attempt"], report["status"], report["step"]) == (2, "healthy", 1)
    assert report["reasons"] == [
        "2 live jobs under this name: attempts 1, 2",
        "attempt 1 is critical",
    ]
    view = view_run(one.state.runs["gpt"]).of_attempt(1)
    assert view is not None
    first = health(view, {}, two.now_ns)
    assert (first["attempt"], first["status"], first["first_bad"]["step"]) == (1, "critical", 0)


def test_a_late_rank_of_the_old_job_does_not_disturb_the_new_one() -> None:
    one = Cluster(world=2, names=("a",))
    one.open(0, job="17")
    two = Cluster(world=2, names=("a",), state=one.state)
    two.now_ns = one.now_ns
    two.start(job="18")
    together(one, two)
    one.open(1, job="17")
    together(one, two)
    two.step(0, NAN)

    assert [sorted(attempt.sessions) for attempt in one.state.runs["gpt"].attempts] == [
        [0, 1],
        [0, 1],
    ]
    assert [(alert.attempt, alert.rule) for alert in two.alerts] == [(2, "nonfinite")]


def test_a_restart_is_no_second_job() -> None:
    """The killed process is not known to be gone for a while; nothing is heard of it any more."""
    job = Cluster(names=("a",)).start()
    job.step(0)
    job.start()
    job.step(0)

    assert job.health()["reasons"] == []
    job.bye(0)
    report = job.health()
    assert (report["attempt"], report["phase"]) == (2, "ended")


def test_when_the_newest_ends_the_one_that_lives_is_current() -> None:
    """A short job under the same name hides the long one no longer than it lives."""
    one, two = two_jobs(Cluster)
    two.step(0)
    together(one, two)
    one.step(0)
    together(one, two)
    two.bye(0)
    assert one.state.runs["gpt"].current.number == 1

    together(one, two)
    one.step(1)
    one.bye(0)
    assert one.state.runs["gpt"].current.number == 1  # heard of last


def test_a_loss_in_one_attempt_does_not_taint_the_next() -> None:
    """S5: neither does lateness."""
    job = Cluster(world=2).start()
    job.step(0)
    job.gap(0, 5)
    job.stats(1, 0)
    assert job.health()["status"] == "incomplete"
    for rank in range(2):
        job.bye(rank)
    job.start()
    job.step(0)

    assert (job.health()["status"], job.health()["reasons"]) == ("healthy", [])
    assert job.health()["records"]["lost"] == 5


def test_incomplete_ends_when_the_window_has_moved_past() -> None:
    """S5: one late record is no blemish for good; while it lasts all reasons are told."""
    job = Cluster(names=("a",), window_steps=16).start()
    job.step(0)
    for step in range(1, 4):
        job.step(step, [1e-9])
    job.stats(0, 3, [0.0])
    job.gap(0, 1)
    reasons = job.health()["reasons"]
    assert [why.split(" since ")[0] for why in reasons] == [
        "Vanishing",
        *("1 record lost", "1 record too late for their step", "1 record lost"),
    ]
    for step in range(4, 19):
        job.step(step)
    assert job.health()["status"] == "incomplete"
    job.step(19)
    assert (job.health()["status"], job.health()["reasons"]) == ("healthy", [])


def test_at_most_so_many_attempts_are_judged_at_once() -> None:
    """A job that crashes and restarts all the time, or a name that everybody uses."""
    job = Cluster(names=("a",))
    for number in range(MAX_LIVE + 5):
        job.open(0, job=str(number))
        job.declare(0)
        job.step(0)
    run = job.state.runs["gpt"]

    assert [own.number for own in run.judged] == list(range(6, MAX_LIVE + 6))
    assert len(view_run(run).others) <= 2 * MAX_LIVE
    assert job.closed == [0]


def test_a_late_hello_of_an_old_process_does_not_end_a_training_that_was_away() -> None:
    training = Cluster(names=("a",)).start(job="new")
    training.step(0)
    training.lose(0)
    training.wait(40)
    old = Cluster(names=("a",), state=training.state)
    together(training, old)
    old.open(0, job="old")
    together(training, old)
    training.back(0)
    for step in range(1, 4):
        training.step(step)
    together(training, old)
    old.lose(0)
    training.step(4, NAN)
    run = training.state.runs["gpt"]
    first = run.attempts[0]

    assert (first.num_frames, first.counts.num_late, first.retired) == (5, 0, False)
    assert [(alert.attempt, alert.rule) for alert in training.alerts] == [
        *((1, "liveness"), (1, "nonfinite"))
    ]
    assert run.current is first


def test_a_process_of_an_earlier_launch_is_not_current_while_a_later_one_lives() -> None:
    for old, new in (("17", "18"), ("17/0", "17/1"), ("/0/node-3:29500", "/1/node-3:29500")):
        before = Cluster(names=("a",)).start(job=old)
        training = Cluster(names=("a",), state=before.state)
        together(before, training)
        before.bye(0)
        together(before, training)
        training.start(job=new)
        together(before, training)
        before.open(0, job=old)
        together(before, training)
        training.step(0)
        run = training.state.runs["gpt"]

        assert run.current.job == new
        assert [own.number for own in run.live] == [2, 3]
        training.bye(0)
        assert run.current.number == 3


def test_another_job_is_current_as_soon_as_it_begins() -> None:
    for old, new in (("18", "17"), ("17/1", "18/0"), ("", ""), ("/0", "/0"), ("/1", "/0")):
        one = Cluster(names=("a",)).start(job=old)
        two = Cluster(names=("a",), state=one.state)
        together(one, two)
        two.start(job=new)

        assert one.state.runs["gpt"].current.number == 2


def test_a_lost_launch_that_was_restarted_is_over() -> None:
    job = Cluster(names=("a",)).start(job="7/0")
    job.lose(0)
    job.start(job="7/1")
    job.lose(0)
    job.start(job="8/0")

    assert [attempt.retired for attempt in job.state.runs["gpt"].attempts] == [True, False, False]


def test_a_rank_does_not_join_a_lost_attempt_that_a_later_one_replaced() -> None:
    """The first of a restart may be a rank that the lost one never had."""
    job = Cluster(world=2, names=("a",))
    job.open(0)
    job.lose(0)
    job.open(0)
    job.open(1)
    job.open(1)

    assert [sorted(attempt.sessions) for attempt in job.state.runs["gpt"].attempts] == [
        [0],
        [0, 1],
        [1],
    ]


def test_all_ranks_measure_as_rarely_as_the_rank_that_does_so_most_rarely() -> None:
    job = Cluster(world=2).start()
    one, other = job.sessions[0], job.sessions[1]

    def agreed() -> list[int]:
        return [job.state.every_of(session) for session in (one, other, b"nobody")]

    def want(rank: int, every: Any) -> None:
        job.send(rank, Event(name="pace", step=0, data={"every": every}))

    assert agreed() == [1, 1, 1]
    want(0, 8)
    assert agreed() == [8, 8, 1]
    want(1, 4)
    assert agreed() == [8, 8, 1]
    want(0, 2)
    assert agreed() == [4, 4, 1]
    for nonsense in (-3, 0, True, 1.5, "8"):
        want(1, nonsense)
        assert agreed() == [2, 2, 1]
