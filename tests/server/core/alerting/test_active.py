"""The life of an alert, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.alerting.active import MAX_KEPT
from gradwatch_server.core.alerting.alert import MAX_NAMED_LAYERS, alert_id
from gradwatch_wire.health import AlertState
from tests.support.core import Cluster

NAN = math.nan

pytestmark = pytest.mark.usefixtures("limit_alone")


def told(alerts: list[Any]) -> list[tuple[str, str, int | None, int | None]]:
    return [(str(a.rule), str(a.state), a.fired_step, a.resolved_step) for a in alerts]


def test_a_pending_alert_is_shown_but_not_told() -> None:
    job = Cluster(names=("a",)).start()
    job.rules(exploding={"for_steps": 2})
    assert job.step(0, [101.0]) == []

    (pending,) = job.attempt.active_alerts.alerts()
    assert (pending.state, pending.first_step, pending.fired_step) == (AlertState.PENDING, 0, None)
    job.step(1, [1.0])
    job.step(2, [1.0])

    assert job.attempt.active_alerts.alerts() == ()


def test_a_disabled_rule_says_nothing() -> None:
    job = Cluster(names=("a",)).start()
    job.rules(exploding={"enabled": False})
    for step in range(4):
        job.step(step, [101.0])

    assert job.alerts == []
    assert job.health()["layers"]["exploding"] == 1


def test_rules_count_from_when_they_are_set() -> None:
    """A change of rules in the log holds for the steps after it."""
    job = Cluster(names=("a",)).start()
    job.step(0, [1.0])
    job.rules(exploding={"limit": 10, "clear": 5, "for_steps": 1, "severity": "warning"})

    (alert,) = job.step(1, [20.0])

    assert (alert.first_step, alert.severity, alert.origin.threshold) == (1, "warning", 10.0)


def test_alternating_layers_do_not_undo_each_other() -> None:
    job = Cluster(names=("gen", "critic"))
    job.rules(exploding={"for_steps": 2})
    job.open()
    job.declare(0, ["gen"], manifest_id=1)
    job.declare(0, ["critic"], manifest_id=2)
    for step in range(4):
        gen = step % 2 == 0
        job.stats(0, step, [500.0 if gen else 1.0], manifest_id=1 if gen else 2)
    assert told(job.alerts) == [("exploding", "firing", 2, None)]

    for step in range(4, 9):
        gen = step % 2 == 0
        job.stats(0, step, [1.0], manifest_id=1 if gen else 2)

    assert told(job.alerts)[1:] == [("exploding", "resolved", 2, 8)]


def test_a_layer_that_was_never_bad_does_not_hold_an_alert() -> None:
    """Hysteresis is for the layers that exploded, not for others that merely are large."""
    job = Cluster(names=("bad", "large")).start()
    job.rules(exploding={"for_steps": 2})
    job.step(0, [500.0, 60.0])
    job.step(1, [500.0, 60.0])
    for step in (2, 3, 4):
        job.step(step, [1.0, 60.0])

    assert told(job.alerts)[-1] == ("exploding", "resolved", 1, 4)
    assert job.alerts[-1].layers == ("bad",)


def test_layers_that_turn_bad_later_join_the_alert() -> None:
    job = Cluster(names=("a", "b", "c")).start()
    job.rules(exploding={"for_steps": 2})
    job.step(0, [1.0, 1.0, 500.0])
    job.step(1, [1.0, 900.0, 1.0])
    job.step(2, [200.0, 900.0, 1.0])

    (alert,) = job.attempt.active_alerts.alerts()
    assert [(a.id, a.change) for a in job.alerts] == [(alert.id, "firing"), (alert.id, "firing:1")]
    assert (alert.layers, alert.num_layers) == (("c", "a", "b"), 3)
    assert (alert.origin.layer, alert.origin.step, alert.last_step) == ("c", 0, 2)


def test_layers_that_appear_while_it_fires_join_it_too() -> None:
    """A layer declared after the alert began has a place after all others."""
    job = Cluster(names=("a",)).start()
    job.rules(exploding={"for_steps": 2})
    job.step(0, [500.0])
    job.step(1, [500.0])
    job.declare(0, ["a", "new"], manifest_id=2)
    job.stats(0, 2, [1.0, 500.0], manifest_id=2)

    (alert,) = job.attempt.active_alerts.alerts()
    assert alert.layers == ("a", "new")
    for step in (3, 4, 5):
        job.stats(0, step, [1.0, 1.0], manifest_id=2)

    assert told(job.alerts)[-1] == ("exploding", "resolved", 1, 5)


def test_only_some_of_many_layers_are_named() -> None:
    """The count says how many there are."""
    job = Cluster(names=[f"l{i}" for i in range(50)]).start()
    (alert,) = job.step(0, NAN)

    assert alert.layers == ("l49", *(f"l{i}" for i in range(MAX_NAMED_LAYERS - 1)))
    assert alert.origin.first_gradient == "l49"
    assert alert.num_layers == 50
    assert "50 layers" in alert.message


def test_each_group_has_its_own_alert() -> None:
    """A rule fires once per group; layers of no group are in `all`."""
    groups = {"host": (0, 1), "seed": (2,)}
    job = Cluster(names=("a", "b", "c", "d"), groups=groups).start()

    alerts = job.step(0, [1.0, NAN, NAN, NAN], loss=1.0)

    assert {a.group: a.layers for a in alerts} == {"host": ("b",), "seed": ("c",), "all": ("d",)}
    assert len({a.id for a in alerts}) == 3
    assert {a.group: a.origin.layer for a in alerts} == {"host": "b", "seed": "c", "all": "d"}


def test_a_group_is_over_on_its_own() -> None:
    job = Cluster(names=("a", "b"), groups={"host": (0,), "seed": (1,)}).start()
    job.step(0, NAN)
    for step in (1, 2, 3):
        job.step(step, [1.0, NAN])

    assert [(a.group, str(a.state)) for a in job.alerts[2:]] == [("host", "resolved")]


def test_a_group_named_all_hides_no_layer() -> None:
    """The user's group of that name and the layers of no group are one group then."""
    job = Cluster(names=("a", "b"), groups={"all": (0,)}).start()

    (alert,) = job.step(0, NAN)

    assert (alert.group, alert.layers) == ("all", ("b", "a"))


def test_more_groups_than_allowed_leave_no_layer_unwatched() -> None:
    """Layers of the groups that no longer fit are watched among all others."""
    job = Cluster(names=("a",), groups={f"g{i}": () for i in range(64)})
    job.open()
    job.declare(0)
    job.declare(0, ["late"], manifest_id=2, groups={"one too many": (0,)})

    (alert,) = job.stats(0, 0, [NAN], manifest_id=2)

    assert (alert.group, alert.layers) == ("all", ("late",))


def test_several_rules_fire_side_by_side() -> None:
    job = Cluster(names=("a", "b", "c")).start()
    for step in range(3):
        job.step(step, [500.0, 0.0, NAN])

    assert {(str(a.rule), a.layers) for a in job.alerts} == {
        ("nonfinite", ("c",)),
        ("exploding", ("a",)),
        ("vanishing", ("b",)),
    }


def test_the_id_is_that_of_run_attempt_rule_group_and_first_step() -> None:
    """Firing and resolved are one alert; what differs in any of the five is another."""
    job = Cluster(names=("a",)).start()
    job.step(3, NAN)
    for step in (4, 5, 6):
        job.step(step)

    assert {a.id for a in job.alerts} == {alert_id("gpt", 1, "nonfinite", "all", 3)}
    base = ("gpt", 1, "nonfinite", "all", 3)
    others = [
        ("gpt2", *base[1:]),
        ("gpt", 2, *base[2:]),
        ("gpt", 1, "exploding", "all", 3),
        ("gpt", 1, "nonfinite", "al", 3),
        ("gpt", 1, "nonfinite", "all", 4),
    ]
    assert len({alert_id(*key) for key in [base, *others]}) == 6


def test_an_origin_shows_the_steps_before() -> None:
    """The norms of the same layer in the five frames before, oldest first, without the bad one."""
    job = Cluster(names=("a", "b")).start()
    for step in range(7):
        job.step(step, [1.0, float(step)])

    (alert,) = job.step(7, [1.0, NAN])

    assert alert.origin.before == ((2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 6.0))
    assert alert.to_dict()["origin"]["before"][0] == {"step": 2, "l2": 2.0}


def test_an_origin_whose_layer_is_not_known_has_nothing_before() -> None:
    """The norms of some other layer would be a guess."""
    job = Cluster(names=("a", "b"), order="registration").start()
    job.step(0)
    (alert,) = job.step(1, NAN)

    assert (alert.origin.layer, alert.origin.before) == (None, ())
    assert alert.layers == ("a", "b")
    assert alert.message == "NaN gradient since step 1 on rank 0: 2 layers (a, b)"


@pytest.mark.slow
def test_resolved_alerts_are_kept_newest_first_and_not_without_bound() -> None:
    """Live ones come first; of the others the last 256 stay in memory."""
    job = Cluster(names=("a",)).start()
    job.rules(nonfinite={"clear_steps": 1})
    for step in range(0, 2 * (MAX_KEPT + 10), 2):
        job.step(step, NAN)
        job.step(step + 1)
    last = 2 * (MAX_KEPT + 10)
    job.step(last, NAN)
    kept = job.attempt.active_alerts.alerts()

    assert [a.first_step for a in kept] == list(range(last, last - 2 * MAX_KEPT - 1, -2))
    assert [str(a.state) for a in kept[:2]] == ["firing", "resolved"]
