"""Gains between blocks: put together over ranks, shown, and evaluated."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.alerting.alert import alert_id
from gradwatch_server.core.views.runs import describe_gains
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire import Column
from gradwatch_wire.jsonable import jsonable
from tests.support.core import Cluster

NAN, INF = math.nan, math.inf


def shown(job: Any) -> Any:
    return jsonable(describe_gains(view_run(job.state.runs["gpt"]).gains))


def test_gains_of_a_step_are_shown_by_block_and_by_transition() -> None:
    job = Cluster().start()
    job.gains(0, 7, 6.0, 2.0, 2.0, 8.0, 0.0, NAN)
    answer = shown(job)

    assert (answer["step"], answer["norm_type"], answer["ranks"]) == (7, "l2", [0])
    assert [(b["name"], b["norm"]) for b in answer["blocks"]] == [
        ("b0", 6.0),
        ("b1", 2.0),
        ("b2", 2.0),
        ("b3", 8.0),
        ("b4", 0.0),
        ("b5", None),
    ]
    assert [(t["from"], t["to"], t["gain"], t["category"]) for t in answer["transitions"]] == [
        ("b0", "b1", 3.0, "amplifying"),
        ("b1", "b2", 1.0, "healthy"),
        ("b2", "b3", 0.25, "damping"),
        ("b3", "b4", "Infinity", "vanishing"),
        ("b4", "b5", None, "missing"),
    ]
    assert answer["transitions"][0]["log_gain"] == pytest.approx(math.log(3.0))
    assert {key: answer["summary"][key] for key in ("min_gain", "max_gain", "num_vanishing")} == {
        "min_gain": 0.25,
        "max_gain": 3.0,
        "num_vanishing": 1,
    }


def test_without_gains_nothing_is_made_up() -> None:
    job = Cluster().start()
    answer = shown(job)
    assert (answer["step"], answer["norm_type"]) == (None, None)
    assert (answer["blocks"], answer["transitions"], answer["ranks"]) == ([], [], [])
    assert answer["summary"]["mean_gain"] is None

    job.gains(0, 0, 1.0)
    assert shown(job)["transitions"] == []


def test_norms_are_means_over_the_ranks_that_have_one() -> None:
    job = Cluster(world=3).start()
    for rank, norms in enumerate([(1.0, NAN), (3.0, 5.0), (8.0, 7.0)]):
        job.gains(rank, 0, *norms)
    answer = shown(job)

    assert answer["blocks"] == [
        {"name": "b0", "norm": 4.0, "min": 1.0, "max": 8.0},
        {"name": "b1", "norm": 6.0, "min": 5.0, "max": 7.0},
    ]
    assert answer["ranks"] == [0, 1, 2]
    assert answer["transitions"][0]["gain"] == pytest.approx(4.0 / 6.0)


def test_ranks_of_one_step_are_put_together_whichever_is_ahead() -> None:
    """The step shown is one that all have sent."""
    job = Cluster(world=2).start()
    job.gains(0, 0, 1.0, 1.0)
    job.gains(0, 1, 5.0, 1.0)
    assert shown(job)["step"] is None
    job.gains(1, 0, 3.0, 1.0)
    assert (shown(job)["step"], shown(job)["blocks"][0]["norm"]) == (0, 2.0)

    job.gains(1, 1, 7.0, 1.0)

    assert (shown(job)["step"], shown(job)["blocks"][0]["norm"]) == (1, 6.0)


def test_a_rank_that_measures_no_gains_is_not_waited_for() -> None:
    job = Cluster(world=2).start()
    job.gains(0, 0, 1.0, 1.0)
    job.stats(1, 0)
    assert shown(job)["step"] is None
    job.stats(1, 1)
    assert (shown(job)["step"], shown(job)["ranks"]) == (0, [0])

    job.gains(0, 2, 1.0, 1.0)
    assert job.attempt.waiting
    job.wait(6)

    assert shown(job)["step"] == 2


def test_gains_that_come_too_late_are_counted() -> None:
    job = Cluster(world=2).start()
    job.gains(0, 0, 1.0, 1.0)
    job.wait(6)
    job.gains(1, 0, 9.0, 9.0)

    assert shown(job)["ranks"] == [0]
    assert job.health()["records"]["late"] == 1


def test_ranks_with_other_blocks_are_not_mixed() -> None:
    """The stages of a pipeline have blocks of their own; so have other norms."""
    job = Cluster(world=3).start()
    job.gains(0, 0, 1.0, 2.0)
    job.gains(1, 0, 50.0, 50.0, blocks=("x", "y"))
    job.gains(2, 0, 60.0, 60.0, norm_type="l1")

    assert shown(job)["ranks"] == [0]
    assert [b["norm"] for b in shown(job)["blocks"]] == [1.0, 2.0]


def test_what_is_no_norm_is_missing() -> None:
    """A negative number from a faulty client; an infinite one is shown, and has no gain."""
    job = Cluster().start()
    job.gains(0, 0, -1.0, INF, 1e308)

    assert [b["norm"] for b in shown(job)["blocks"]] == [None, "Infinity", 1e308]
    assert [t["category"] for t in shown(job)["transitions"]] == ["missing", "missing"]


def test_norms_of_any_dtype_are_read() -> None:
    job = Cluster().start()
    job.gains(0, 0, 1, 4, norms=Column.pack("<u4", [1, 4]))

    assert shown(job)["transitions"][0]["gain"] == 0.25


def test_the_rule_fires_and_is_over() -> None:
    job = Cluster(names=("a",)).start()
    bad, calm = (9.0, 3.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0)
    for step, norms in enumerate([bad, calm, calm, bad, bad, bad, calm, calm, calm]):
        job.gains(0, step, *norms)

    fired, resolved = job.alerts
    assert (fired.rule, fired.group, str(fired.severity)) == ("gain", "blocks", "warning")
    assert (fired.first_step, fired.fired_step, resolved.resolved_step) == (3, 5, 8)
    assert fired.id == resolved.id == alert_id("gpt", 1, "gain", "blocks", 3)
    assert (fired.layers, fired.num_layers) == ((), 0)
    assert fired.origin.layer == "b0 -> b1"
    assert (fired.origin.value, fired.origin.threshold, fired.origin.rank) == (3.0, 2.0, 0)
    assert fired.message == "Gain off since step 3: b0 -> b1 at 3 (limit 2)"
    assert job.health()["status"] == "unknown"


def test_between_its_thresholds_it_is_neither_over_nor_raised() -> None:
    """Half of the transitions hold it; steps without any gain say nothing."""
    job = Cluster().start()
    job.rules(gain={"for_steps": 1, "clear_steps": 2})
    bad, half, none, calm = (8.0, 1.0), (8.0, 1.0, 1.0), (NAN, NAN), (1.0, 1.0)
    for step, norms in enumerate([half, bad, half, calm, none, half, calm, calm]):
        job.gains(0, step, *norms)

    assert [(a.fired_step, a.resolved_step) for a in job.alerts] == [(1, None), (1, 7)]


def test_gains_that_damp_name_the_lower_limit() -> None:
    job = Cluster(world=2).start()
    job.rules(gain={"for_steps": 1, "low": 0.25, "severity": "critical"})
    job.gains(0, 0, 1.0, 10.0)
    (alert,) = job.gains(1, 0, 1.0, 10.0)

    assert alert.message == "Gain off since step 0: b0 -> b1 at 0.1 (limit 0.25)"
    assert (alert.origin.rank, str(alert.severity)) == (None, "critical")


def test_the_rule_can_be_switched_off() -> None:
    """Gains are shown all the same."""
    job = Cluster().start()
    job.rules(gain={"for_steps": 1, "enabled": False})
    job.gains(0, 0, 8.0, 1.0)

    assert job.alerts == []
    assert shown(job)["step"] == 0


def test_gains_of_an_attempt_that_is_over_are_judged_and_go_with_it() -> None:
    job = Cluster(world=2).start()
    job.rules(gain={"for_steps": 1})
    job.gains(0, 5, 8.0, 1.0)
    job.bye(0)
    (alert,) = job.bye(1)
    job.open(0)

    assert (alert.attempt, alert.first_step) == (1, 5)
    assert shown(job)["step"] is None
