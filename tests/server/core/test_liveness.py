"""Hangs, silence, loss and failure: what BEATs, their absence and BYE make of a run (S1, S10)."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_server.core.entries import BeatProgress, Beats, Opened
from gradwatch_wire.session.replayed import as_replayed
from tests.server.core.test_saved_state import restored, same, story_of
from tests.support.core import Cluster


def training(cluster: Any, *, world: int = 2, steps: int = 20, gap_s: float = 1.0) -> Any:
    """Return a job whose ranks took so many steps, so far apart."""
    job = cluster(world=world, names=("a",)).start()
    for step in range(steps):
        job.now_ns += round(gap_s * 1e9)
        job.step(step)
    return job


def hang(job: Any, seconds: float, **beat: Any) -> list[Any]:
    """Let the ranks say for so long that they live; return the alerts."""
    ranks = sorted(job.sessions)
    return [a for _ in range(round(seconds / 4)) for a in job.beat(*ranks, after=4.0, **beat)]


def told(alerts: list[Any]) -> list[tuple[str, str, str]]:
    return [(alert.rule, str(alert.state), str(alert.severity)) for alert in alerts]


def test_a_hang_is_a_stall_and_gets_worse_until_the_next_step() -> None:
    """S1: info at 30 s, warning at 300 s, critical at 1,800 s; the status is `stalled` before."""
    job = training(Cluster)
    assert hang(job, 28) == []
    assert job.health()["status"] == "healthy"

    assert told(hang(job, 8)) == [("liveness", "firing", "info")]
    health = job.health()
    assert health["status"] == "stalled"
    assert health["reasons"][0].startswith("Hang: no step for 3")
    assert told(hang(job, 260)) == []
    assert told(hang(job, 20)) == [("liveness", "firing", "warning")]
    assert job.health()["status"] == "stalled"
    assert told(hang(job, 1500)) == [("liveness", "firing", "critical")]
    assert job.health()["status"] == "critical"

    resolved = job.step(20)
    assert told(resolved) == [("liveness", "resolved", "critical")]
    assert job.health()["status"] == "healthy"
    assert len({alert.id for alert in job.alerts}) == 1


def test_seconds_are_told_so_that_they_are_beyond_the_limit() -> None:
    job = training(Cluster)
    job.rules(liveness={"info_s": 11.8})
    (alert,) = hang(job, 12)

    assert alert.message.startswith("Hang: no step for 12.0 s (limit 11.8 s)")


def test_what_is_long_follows_from_the_steps_before() -> None:
    """Ten times the median gap, and five times the largest; the first five count for neither."""
    job = Cluster(names=("a",)).start()
    for step, gap_s in enumerate([500, 500, 500, 20, 20, 20, *[20] * 20, 90, *[20] * 5]):
        job.now_ns += gap_s * 1_000_000_000
        job.step(step)

    assert hang(job, 196) == []
    assert told(hang(job, 8)) == [("liveness", "firing", "info")]
    assert hang(job, 244) == []
    assert told(hang(job, 8)) == [("liveness", "firing", "warning")]  # after 5 times 90 s


def test_before_five_gaps_only_the_last_limit_holds() -> None:
    """A first step that compiles for half an hour is told, one of ten minutes is not."""
    job = Cluster(names=("a",)).start()
    assert hang(job, 1796) == []
    assert told(hang(job, 8)) == [("liveness", "firing", "critical")]
    assert job.alerts[0].origin.step == 0

    job = training(Cluster, steps=5)
    assert hang(job, 1796) == []


def test_an_evaluation_is_measured_by_evaluations() -> None:
    job = training(Cluster)
    job.rules(liveness={"warning_s": 60.0, "info_s": 30.0})
    for step in (20, 40, 60):
        assert hang(job, 52, training=False) == []
        for more in range(20):
            job.now_ns += 1_000_000_000
            job.step(step + more)

    assert hang(job, 100, training=False) == []
    job.step(80)
    assert told(hang(job, 32)) == [("liveness", "firing", "info")]
    assert told(hang(job, 32)) == [("liveness", "firing", "warning")]


def test_the_rank_that_is_behind_is_named_or_that_none_is() -> None:
    job = training(Cluster, world=3)
    for rank in (0, 1):
        job.stats(rank, 20)
    job.wait(5.5)
    (alert, *_) = [a for a in hang(job, 40) if a.origin.kind == "stalled"]
    assert (alert.origin.rank, alert.origin.ranks, alert.origin.step) == (2, (2,), 19)
    assert "rank 2 stopped after step 19, others at step 20" in alert.message

    job = training(Cluster, world=3)
    (alert,) = hang(job, 36)
    assert (alert.origin.rank, alert.origin.ranks) == (None, (0, 1, 2))
    assert "; all ranks stopped after step 19" in alert.message


def test_since_s_counts_and_a_beat_without_it_hides_nothing() -> None:
    """A rank knows better than the log when its last step was; it cannot take one again."""
    job = training(Cluster)
    assert told(job.beat(0, 1, after=4, since_s=31.0)) == [("liveness", "firing", "info")]

    job = training(Cluster)
    assert told(hang(job, 36, since_s=0.0)) == [("liveness", "firing", "info")]
    for nonsense in (float("nan"), float("inf"), -5.0, 1e300):
        job.beat(0, 1, after=4, since_s=nonsense)
    (alert,) = job.health()["alerts"]["items"]
    assert alert["origin"]["value"] == pytest.approx(52, abs=0.1)


def test_steps_on_their_way_are_no_stall() -> None:
    """A BEAT may tell of a step whose statistics are not here yet."""
    job = training(Cluster)
    for step in range(20, 35):
        job.now_ns += 4_000_000_000
        said = [BeatProgress(job.sessions[rank], step, 0.5) for rank in range(2)]
        assert job.put(Beats(tuple(said))) == []


def test_a_rank_without_a_sign_of_life_is_silent_and_then_lost() -> None:
    """S10: told at once when it is taken for lost, and it stays so."""
    job = training(Cluster)
    for _ in range(3):
        assert job.beat(0, after=4) == []
    alerts = job.beat(0, after=4)
    assert told(alerts) == [("liveness", "firing", "warning")]
    assert (alerts[0].origin.rank, alerts[0].origin.step) == (1, 19)
    assert alerts[0].message.startswith("Rank 1 silent for 1")

    (gone,) = job.lose(1)
    assert told([gone]) == [("liveness", "firing", "critical")]
    assert (gone.id, gone.origin.kind, gone.origin.ranks) == (alerts[0].id, "lost", (1,))
    assert gone.message.startswith("Rank 1 lost after step 19: no heartbeat")
    assert gone.message.endswith("; at step 19: now critical, now lost")
    for step in range(20, 60):
        job.stats(0, step)
    health = job.health()
    assert (health["phase"], health["status"]) == ("running", "critical")
    assert "ranks lost: 1" in health["reasons"]


def test_a_rank_that_falls_behind_is_told_of() -> None:
    job = training(Cluster)
    for step in range(20, 32):
        job.stats(0, step)
        job.wait(5.5)
        job.beat(1)
    (alert,) = [alert for alert in job.alerts if alert.origin.kind == "silent"]
    assert (str(alert.state), alert.origin.ranks) == ("firing", (1,))
    assert alert.message.startswith("Rank 1 stuck at step 19 (others: ")

    job.stats(1, 31)
    job.step(32)
    assert told(job.wait(0))[-1:] == [("liveness", "resolved", "warning")]


def test_a_lost_rank_that_is_back_or_replaced_is_over() -> None:
    job = training(Cluster)
    (lost,) = job.lose(1)
    (back,) = job.back(1)
    (again,) = job.lose(1)
    assert (str(back.state), back.id) == ("resolved", lost.id)
    assert again.id != lost.id

    assert job.lose(0) == []
    assert told(job.open(1)) == []  # the other one is still gone
    assert told(job.open(0)) == [("liveness", "resolved", "critical")]


def test_what_is_sent_from_files_brings_no_rank_back() -> None:
    """The process is gone all the same."""
    job = training(Cluster, world=1)
    job.lose(0)
    known = job.sessions[0]
    hello = job.state.sessions[known].hello
    assert job.put(Opened(known, as_replayed(hello))) == []
    assert job.stats(0, 20) == []
    assert job.lose(0) == []
    health = job.health()
    assert (health["phase"], health["status"], health["step"]) == ("lost", "critical", 20)

    assert told(job.bye(0)) == [("liveness", "resolved", "critical")]
    job.put(Opened(known, as_replayed(hello)))
    assert job.health()["phase"] == "ended"  # and stays so, whoever sends it again


def test_an_exception_is_critical_at_once() -> None:
    """S11: of one rank while the others go on, and at the end."""
    job = training(Cluster)
    (alert,) = job.bye(0, "exception")
    assert told([alert]) == [("liveness", "firing", "critical")]
    assert (alert.origin.rank, alert.origin.step) == (0, 19)
    assert (job.health()["phase"], job.health()["status"]) == ("running", "critical")

    job.bye(1)
    health = job.health()
    assert (health["phase"], health["status"]) == ("failed", "critical")
    assert health["reasons"][0].startswith("Rank 0 failed after step 19: exception")


def test_a_run_that_ended_all_nan_is_critical() -> None:
    """S11: the end hides nothing."""
    job = Cluster(names=("a",)).start()
    job.step(0, float("nan"))
    job.bye(0)

    assert (job.health()["phase"], job.health()["status"]) == ("ended", "critical")


def test_the_aggregators_absence_makes_nobody_silent_or_stalled() -> None:
    job = training(Cluster)
    assert job.resume(after=4_000) == []
    assert job.wait(0) == []
    assert hang(job, 28, since_s=1.0) == []
    assert told(hang(job, 8, since_s=2.0)) == [("liveness", "firing", "info")]

    job = training(Cluster)
    job.resume(after=600)
    assert job.wait(9) == []
    assert told(job.wait(7)) == [("liveness", "firing", "warning")]


def test_an_absence_is_no_gap_between_steps() -> None:
    job = training(Cluster)
    job.resume(after=4_000)
    job.step(20)

    assert [str(a.severity) for a in hang(job, 308)] == ["info", "warning"]


@pytest.mark.slow
@pytest.mark.parametrize("place", range(0, 90, 7))
def test_a_restart_changes_nothing_of_it(place: int) -> None:
    job = training(Cluster, steps=8)
    hang(job, 60)
    job.step(8)
    job.stats(0, 9)
    for _ in range(4):
        job.beat(0, after=4)
    job.lose(1)
    job.back(1)
    hang(job, 40)
    job.bye(0, "exception")
    job.lose(1)
    job.start()
    live = Cluster().state
    for entry in job.entries[:place]:
        live.apply(entry)
    other = restored(live)
    for entry in job.entries[place:]:
        same(other.apply(entry), live.apply(entry))

    assert story_of(other) == story_of(live)
    kinds = {alert.origin.kind for alert in job.alerts}
    assert kinds == {"failed", "failed and lost", "lost", "silent", "stalled"}


def test_a_killed_rank_and_the_exceptions_after_it_are_one_alert() -> None:
    """It names the last step of each rank, and is told once."""
    job = Cluster(world=3).start()
    for step in range(4):
        job.step(step)
    job.stats(0, 4)
    (lost,) = job.lose(1)
    failed = [alert for rank in (0, 2) for alert in job.bye(rank, reason="exception")]

    assert told([lost]) == [("liveness", "firing", "critical")]
    assert lost.origin.notes == ("last step of each rank: 3 of ranks 1, 2, 4 of rank 0",)
    assert failed == []


def test_of_ends_within_seconds_nobody_says_which_came_first() -> None:
    """Others raise an exception at once where a rank is killed, or the launcher kills them."""
    job = training(Cluster, world=3)
    failed = [alert for rank in (0, 2) for alert in job.bye(rank, reason="exception")]
    job.now_ns += 30_000_000_000
    (lost,) = job.lose(1)

    assert told(failed) == [("liveness", "firing", "critical")]
    assert (lost.id, lost.origin.kind, lost.origin.ranks) == (
        failed[0].id,
        "failed and lost",
        (0, 2),
    )
    assert lost.message == (
        "Ranks 0 and 2 failed after step 19: exception in training; rank 1 lost; "
        "at step 19: now failed and lost"
    )


def test_a_rank_that_was_lost_before_is_named_alone() -> None:
    job = training(Cluster, world=3)
    job.beat(0, 2, after=8)
    failed = [alert for rank in (0, 2) for alert in job.bye(rank, reason="exception")]
    (lost,) = job.lose(1)

    assert (failed[0].origin.kind, lost.origin.kind, lost.origin.ranks) == ("failed", "lost", (1,))
