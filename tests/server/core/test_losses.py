"""Lost records: the ranges by rank, and sessions out of spill files."""

from __future__ import annotations

from hashlib import blake2s
from typing import Any

from gradwatch_server.core.losses import MAX_RANGES, Losses, LostRange
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.core.views.ranks import describe_ranks
from gradwatch_server.core.views.snapshot import view_run
from tests.support.core import Cluster
from tests.support.whole_state import WholeState

SPILLED = {"versions": {"spill": "1"}}


def shown(job: Any) -> dict[int, Any]:
    """Answer of `/runs/{id}/ranks` by rank."""
    view = view_run(job.state.runs[job.run])
    return {rank["rank"]: rank for rank in describe_ranks(view, {}, job.now_ns)["ranks"]}


def test_the_same_log_gives_the_same_alerts() -> None:
    job = Cluster(world=2).start()
    for step in range(8):
        job.step(step)
        if step % 3 == 0:
            job.gap(step % 2, step + 1)
    again = WholeState()
    alerts = [alert for entry in job.entries for alert in again.apply(entry)]

    assert len(alerts) > 1
    assert alerts == job.alerts


def test_ranks_show_what_was_lost_and_the_steps_around_it() -> None:
    """Sequence numbers count the manifest, too."""
    job = Cluster(world=2).start()
    job.gap(0, 1)
    job.step(5)
    job.gap(0, 3)
    job.step(9)
    job.gap(0, 1)

    assert shown(job)[0]["gaps"] == [
        {"first": 2, "last": 2, "after_step": None, "before_step": 5},
        {"first": 4, "last": 6, "after_step": 5, "before_step": 9},
        {"first": 8, "last": 8, "after_step": 9, "before_step": None},
    ]
    assert (shown(job)[0]["stored"], shown(job)[0]["lost"]) == (3, 5)
    assert shown(job)[1]["gaps"] == []
    assert shown(job)[1]["session"] == blake2s(job.sessions[1], digest_size=8).hexdigest()


def test_ranges_that_touch_are_one_and_only_the_newest_are_kept() -> None:
    losses = Losses()
    losses.add(LostRange(2, 3, 7))
    losses.add(LostRange(4, 9, 7))
    assert losses.ranges() == (LostRange(2, 9, 7),)
    for number in range(MAX_RANGES):
        losses.add(LostRange(100 + 2 * number, 100 + 2 * number, 8))

    assert len(losses.ranges()) == MAX_RANGES
    assert losses.ranges()[0].first == 100
    assert decode(encode(losses), Losses).ranges() == losses.ranges()


def test_a_run_that_only_comes_from_files_is_judged_like_any_other() -> None:
    job = Cluster(world=2).start(**SPILLED)
    job.step(0)

    assert len(job.state.runs["gpt"].attempts) == 1
    assert job.frame.step == 0


def test_an_unknown_session_from_a_file_does_not_disturb_the_training() -> None:
    job = Cluster(world=2)
    job.open(0)
    job.declare(0)
    live = dict(job.sessions)
    current = job.attempt
    for rank in (1, 0):
        job.open(rank, **SPILLED)
        job.declare(rank)
        job.stats(rank, 0)
    run = job.state.runs["gpt"]
    job.sessions = live
    job.open(1)
    job.declare(1)
    job.step(7)

    assert job.attempt is current
    assert [(a.number, a.retired, sorted(a.sessions)) for a in run.attempts] == [
        *((1, False, [0, 1]), (2, True, [0, 1]))
    ]
    assert job.frame.step == 7
    assert (run.num_stored, run.current.counts.num_late) == (8, 0)


def test_training_after_a_replay_is_a_new_attempt() -> None:
    job = Cluster(world=2)
    job.open(0, **SPILLED)
    job.open(1)

    assert [sorted(a.sessions) for a in job.state.runs["gpt"].attempts] == [[0], [1]]
    assert job.attempt.number == 2


def test_a_known_session_goes_on_where_it_was() -> None:
    job = Cluster().start()
    job.step(0)
    job.lose(0)
    job.back(0)
    job.step(1)

    assert len(job.state.runs["gpt"].attempts) == 1
    assert job.closed == [0, 1]
