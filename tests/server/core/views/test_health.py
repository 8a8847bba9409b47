"""The answer to /runs/{id}/health: its shape, each status, and numbers that are not finite."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gradwatch_server.core.alerting.alert import isotime
from gradwatch_wire import Bye, Event
from gradwatch_wire.jsonable import jsonable
from tests.support.core import Cluster

NAN, INF = math.nan, math.inf

FAILED = "Rank 1 failed after step 0: exception in training"
NAN_EVERYWHERE = "NaN gradient since step 0 on a rank not known, maybe the loss before: 3 layers"


def test_the_shape_is_the_one_of_the_design() -> None:
    job = Cluster(world=2, names=("a", "b"), run="gpt2-small").start()
    job.step(0, [3.0, 4.0], loss=2.5)
    job.step(1, [500.0, 0.0], loss=NAN)
    health: Any = jsonable(job.health(seconds_later=0.4))

    assert health["run"] == "gpt2-small"
    assert health["status"] == "critical"
    assert (health["attempt"], health["step"]) == (1, 1)
    assert health["updated_at"] == isotime(job.frame.received_ns)
    assert health["score"] == {"last": 0.0, "mean": 0.5, "min": 0.0}
    assert health["window"] == {"steps": 2, "first_step": 0, "last_step": 1, "coverage": 1.0}
    norm = health["gradient_norm"]
    assert {key: norm[key] for key in ("last", "max", "p50")} == {
        "last": 500.0,
        "max": 500.0,
        "p50": 252.5,
    }
    assert norm["mean"] == pytest.approx(252.5)
    assert norm["std"] == pytest.approx(247.5)
    assert norm["p95"] == pytest.approx(475.25)
    assert (health["has_vanishing"], health["has_exploding"]) == (True, True)
    assert health["layers"] == {
        "total": 2,
        "vanishing": 1,
        "exploding": 1,
        "nonfinite": 0,
        "dead": 1,
    }
    assert health["worst_layers"] == [
        {"name": "a", "why": "exploding", "l2": 500.0},
        {"name": "b", "why": "vanishing", "l2": 0.0},
    ]
    assert health["groups"] == {}
    assert (health["records"]["stored"], health["records"]["lost"]) == (6, 0)
    assert {key: health["ranks"][1][key] for key in ("rank", "state", "last_step", "lost")} == {
        "rank": 1,
        "state": "alive",
        "last_step": 1,
        "lost": 0,
    }
    assert health["ranks"][1]["last_seen_s"] == 0.4
    assert (health["alerts"]["firing"], health["alerts"]["pending"]) == (2, 0)
    assert {item["rule"] for item in health["alerts"]["items"]} == {"exploding", "loss"}
    assert health["first_bad"] == {
        "step": 1,
        "rank": None,
        "layer": None,
        "kind": "nan",
        "bad_loss": True,
        "first_gradient": None,
        "module": None,
        "layers": [],
        "num_layers": 0,
        "last_good_step": None,
        "batch": "",
        "place": "",
    }
    assert json.loads(json.dumps(health, allow_nan=False)) == health


def test_before_the_first_step_nothing_is_made_up() -> None:
    health = Cluster(world=2).start().health()

    assert (health["status"], health["reasons"]) == ("unknown", ["no step yet"])
    assert (health["step"], health["loss"], health["first_bad"]) == (None, None, None)
    assert (health["lr"], health["step_time_s"]) == (None, None)
    assert health["score"] == {"last": None, "mean": None, "min": None}
    assert health["window"] == {"steps": 0, "first_step": None, "last_step": None, "coverage": None}
    assert set(health["gradient_norm"].values()) == {None, 0}
    assert health["layers"]["total"] == 3
    assert [rank["last_step"] for rank in health["ranks"]] == [None, None]


def healthy(job: Any) -> None:
    job.step(0)


def no_step(job: Any) -> None:
    """Nothing but the attach."""


def degraded(job: Any) -> None:
    job.step(0)
    for step in range(1, 4):
        job.step(step, [1e-9, 1.0, 1.0])


def critical(job: Any) -> None:
    job.step(0, NAN)


def ended(job: Any) -> None:
    job.step(0)
    job.bye(0)
    job.bye(1)


def ended_badly(job: Any) -> None:
    job.step(0, NAN)
    job.bye(0)
    job.bye(1, "exception")


def half_ended(job: Any) -> None:
    job.step(0)
    job.bye(0)


def one_lost(job: Any) -> None:
    job.step(0)
    job.lose(1)


def all_lost(job: Any) -> None:
    one_lost(job)
    job.lose(0)


def skipped(job: Any) -> None:
    job.step(0, NAN, loss_scale=1024.0)


def skipped_often(job: Any) -> None:
    for step in range(3):
        job.step(step, NAN, loss_scale=0.5)


def records_lost(job: Any) -> None:
    job.step(0)
    job.gap(0, 3)


def records_late(job: Any) -> None:
    job.step(0)
    job.stats(1, 0)


def records_unresolved(job: Any) -> None:
    job.step(0)
    job.stats(0, 1, manifest_id=7)


def rank_behind(job: Any) -> None:
    job.step(0)
    job.stats(0, 1)
    job.wait(5.5)


def critical_and_lost(job: Any) -> None:
    critical(job)
    job.lose(1)


def degraded_and_lost(job: Any) -> None:
    degraded(job)
    job.gap(0, 1)


def ended_with_losses(job: Any) -> None:
    job.gap(0, 3)
    ended(job)


@pytest.mark.parametrize(
    ("story", "status", "why"),
    [
        (healthy, "healthy", []),
        (no_step, "unknown", ["no step yet"]),
        (degraded, "degraded", ["Vanishing since step 1: a at 1e-09 (limit 1e-07)"]),
        (critical, "critical", [NAN_EVERYWHERE]),
        (skipped, "healthy", []),
        (skipped_often, "critical", ["GradScaler skips steps since step "]),
        (ended, "healthy", []),
        (ended_badly, "critical", [NAN_EVERYWHERE, FAILED, "ranks failed: 1"]),
        (ended_with_losses, "incomplete", ["3 records lost", "3 records lost since step 0"]),
        (half_ended, "healthy", []),
        (
            one_lost,
            "critical",
            ["Rank 1 lost after step 0: no heartbeat, no clean exit", "ranks lost: 1"],
        ),
        (
            all_lost,
            "critical",
            ["Ranks 0 and 1 lost after step 0: no heartbeat, no clean exit", "ranks lost: 0, 1"],
        ),
        (records_lost, "incomplete", ["3 records lost", "3 records lost since step 1"]),
        (records_late, "incomplete", ["1 record too late for their step"]),
        (records_unresolved, "incomplete", ["1 record without their manifest"]),
        (rank_behind, "incomplete", ["last step has 50% of its ranks"]),
        (critical_and_lost, "critical", [NAN_EVERYWHERE, "Rank 1 lost", "ranks lost: 1"]),
        (
            degraded_and_lost,
            "incomplete",
            ["1 record lost", "1 record lost since step 4", "Vanishing since step 1"],
        ),
    ],
)
def test_the_status_is_the_worst_that_holds(story: Any, status: str, why: list[str]) -> None:
    job = Cluster(world=2).start()
    story(job)
    health = job.health()

    assert health["status"] == status
    assert len(health["reasons"]) == len(why)
    for reason, begin in zip(health["reasons"], why, strict=True):
        assert reason.startswith(begin)


def test_a_run_without_a_sign_of_life_is_stalled() -> None:
    job = Cluster(world=2).start()
    job.step(0)
    assert job.health(seconds_later=5.9)["status"] == "healthy"
    silent = job.health(seconds_later=6.1)
    assert (silent["status"], silent["reasons"]) == ("stalled", ["nothing heard of any rank"])

    beat = {job.sessions[1]: job.now_ns + 5_000_000_000}
    health = job.health(seconds_later=6.1, last_seen=beat)

    assert (health["status"], health["reasons"]) == ("incomplete", ["ranks silent: 0"])
    assert [rank["state"] for rank in health["ranks"]] == ["silent", "alive"]
    assert [rank["last_seen_s"] for rank in health["ranks"]] == [6.101, 1.1]


def test_an_aggregator_that_takes_nothing_in_blames_itself() -> None:
    job = Cluster(world=2).start()
    healthy(job)
    health = job.health(seconds_later=60, fault="the log cannot be written: full")

    assert (health["status"], health["reasons"]) == (
        "incomplete",
        ["the log cannot be written: full"],
    )
    critical(job := Cluster(world=2).start())
    assert job.health(fault="full")["status"] == "critical"
    ended(job := Cluster(world=2).start())
    assert job.health(fault="full")["status"] == "healthy"


def test_silence_after_the_end_is_no_stall() -> None:
    """Ended and lost ranks are expected to say nothing."""
    job = Cluster(world=2).start()
    ended(job)
    assert job.health(seconds_later=9_999)["status"] == "healthy"

    job = Cluster(world=2).start()
    half_ended(job)
    job.lose(1)
    assert job.health(seconds_later=9_999)["status"] == "critical"  # as it stood


@pytest.mark.parametrize(
    ("story", "phase"),
    [
        (no_step, "waiting"),
        (healthy, "running"),
        (half_ended, "running"),
        (one_lost, "running"),
        (ended, "ended"),
        (ended_badly, "failed"),
        (all_lost, "lost"),
    ],
)
def test_the_phase_is_where_a_run_is_in_its_life(story: Any, phase: str) -> None:
    job = Cluster(world=2).start()
    story(job)

    assert job.health(seconds_later=9_999)["phase"] == phase


def test_a_rank_that_never_attached_is_missed() -> None:
    job = Cluster(world=4)
    for rank in (0, 2):
        job.open(rank)
        job.declare(rank)
    assert job.health()["status"] == "unknown"
    job.stats(0, 0)
    job.stats(2, 0)
    job.wait(5.5)
    health = job.health()

    assert (health["status"], health["reasons"]) == ("incomplete", ["2 of 4 ranks attached"])
    assert [rank["rank"] for rank in health["ranks"]] == [0, 2]
    assert health["window"]["coverage"] == 0.5


def test_an_attempt_is_not_ended_before_all_ranks_of_the_job_are() -> None:
    job = Cluster(world=2)
    job.open(0)
    job.declare(0)
    job.stats(0, 0)
    job.bye(0)
    job.wait(5.5)

    assert job.health()["status"] == "incomplete"


def test_nonfinite_steps_neither_hide_nor_drown_the_others() -> None:
    """The summary is over finite steps; the last norm and a count show the rest."""
    job = Cluster(names=("a",)).start()
    for step, norm in enumerate([1.0, 3.0, NAN, INF]):
        job.step(step, [norm])
    norms = job.health()["gradient_norm"]

    assert norms["last"] == INF
    assert (norms["mean"], norms["max"], norms["nonfinite_steps"]) == (2.0, 3.0, 2)
    assert jsonable(norms)["last"] == "Infinity"  # type: ignore[call-overload,index]  # a map


def test_a_window_without_any_finite_step_has_no_summary() -> None:
    job = Cluster(names=("a",)).start()
    job.step(0, [NAN])
    norms = job.health()["gradient_norm"]

    assert (norms["mean"], norms["std"], norms["p50"], norms["max"]) == (None,) * 4
    assert math.isnan(norms["last"])


def test_statistics_of_very_large_norms_are_finite() -> None:
    """Sums and squares of norms near the largest double do not turn into Infinity."""
    job = Cluster(names=("a",)).start()
    for step, norm in enumerate([1.5e308, 0.5e308]):
        job.step(step, [norm])
    norms = job.health()["gradient_norm"]

    assert norms["mean"] == pytest.approx(1e308)
    assert norms["std"] == pytest.approx(0.5e308)


def test_a_nonfinite_layer_leaves_no_health() -> None:
    job = Cluster(names=("a", "b")).start()
    job.step(0, [NAN, 1.0], loss_scale=65536.0)
    assert job.health()["score"]["last"] == pytest.approx(0.6)

    job.step(1, [NAN, 1.0])
    health = job.health()

    assert health["score"]["last"] == 0.0
    assert (health["has_exploding"], health["layers"]["exploding"]) == (True, 0)
    assert health["layers"]["nonfinite"] == 1


def test_the_score_is_over_the_layers_that_are_there() -> None:
    """A layer that sits a step out is not counted as a good one."""
    job = Cluster(names=("a", "b"))
    job.open()
    job.declare(0, ["a", "b"])
    job.declare(0, ["b"], manifest_id=2)
    job.stats(0, 0, [500.0], manifest_id=2)

    assert job.health()["score"]["last"] == pytest.approx(0.2)


def test_one_bad_step_stays_visible() -> None:
    """The minimum of the window remembers what the last step no longer shows."""
    job = Cluster(names=("a",)).start()
    for step in range(20):
        job.step(step, [NAN if step == 3 else 1.0])
    score = job.health()["score"]

    assert (score["last"], score["min"]) == (1.0, 0.0)
    assert score["mean"] == pytest.approx(19 / 20)


def test_the_worst_layers_come_first() -> None:
    """Non-finite from the end of the forward pass, then the largest, then the smallest; ten."""
    norms = [0.0, 300.0, 1e-9, NAN, 200.0, INF, 1.0]
    job = Cluster(names=tuple("abcdefg")).start()
    job.step(0, norms)

    assert [(w["name"], w["why"]) for w in job.health()["worst_layers"]] == [
        ("f", "nonfinite"),
        ("d", "nonfinite"),
        ("b", "exploding"),
        ("e", "exploding"),
        ("a", "vanishing"),
        ("c", "vanishing"),
    ]
    many = Cluster(names=[f"l{i}" for i in range(30)]).start()
    many.step(0, 0.0)
    assert len(many.health()["worst_layers"]) == 10


def test_first_bad_stays_the_first() -> None:
    """Later trouble does not move it; the next attempt begins without."""
    job = Cluster(world=2, names=("a", "b")).start()
    job.step(4)
    job.stats(0, 5, [1.0, INF], loss=1.0)
    job.stats(1, 5, [1.0, INF], loss=INF)
    job.step(6, NAN)

    assert job.health()["first_bad"] == {
        "step": 5,
        "rank": 1,
        "layer": None,
        "kind": "inf",
        "bad_loss": True,
        "first_gradient": "b",
        "module": None,
        "layers": ("b",),
        "num_layers": 1,
        "last_good_step": None,
        "batch": "",
        "place": "",
    }
    job.start()
    assert job.health()["first_bad"] is None


def test_a_sum_of_counts_is_not_needed_to_see_what_a_rank_sent() -> None:
    job = Cluster(world=2)
    job.open(0, host="node-7", pid=4711)
    job.open(1)
    job.declare(0)
    job.gap(0, 4)
    job.stats(0, 0, manifest_id=3)
    rank = job.health()["ranks"][0]

    assert {key: rank[key] for key in ("host", "pid", "stored", "lost", "unresolved")} == {
        "host": "node-7",
        "pid": 4711,
        "stored": 2,
        "lost": 4,
        "unresolved": 1,
    }


def test_the_point_is_that_of_the_last_step_unless_the_ranks_differ() -> None:
    """A norm means nothing without where it was taken; what is not common is not claimed."""
    job = Cluster(world=2, names=("a",)).start()
    assert job.health()["point"] is None

    job.step(0, 1.0, labels={"point": "backward"})
    assert job.health()["point"] == "backward"

    job.stats(0, 1, 1.0, labels={"point": "backward"})
    job.stats(1, 1, 1.0, labels={"point": "optimizer_step"})
    assert job.health()["point"] is None


def test_what_a_rank_says_of_its_pace_is_shown() -> None:
    job = Cluster().start()
    job.step(0)
    assert job.health()["pace"] is None
    text = "every 64th step in full, the others counted: about 0.9% of 4.8 ms"
    job.send(0, Event(name="pace", step=32, data={"every": 64}, text=text))
    assert job.health()["pace"] == text
    assert job.health()["ranks"][0]["pace"] == text


@pytest.mark.parametrize(
    ("said", "newest"), [(9, 9), (3, 4), (-1, 4)], ids=["later", "earlier", "nothing"]
)
def test_the_step_of_a_run_that_has_ended_is_the_last_that_a_rank_names(
    said: int, newest: int
) -> None:
    job = Cluster(world=2).start()
    job.step(4)
    job.send(0, Bye(last_step=said))
    assert job.health()["ranks"][0]["last_step"] == newest
    assert job.health()["step"] == newest
    assert job.health()["window"]["last_step"] == 4
    assert job.health()["ranks"][1]["last_step"] == 4
