"""The life of an alert, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.alerting.active import MAX_KEPT, MAX_NAMED_LAYERS
from gradwatch_server.core.alerting.alert import alert_id, isotime, printable
from gradwatch_wire.health import AlertState

NAN = math.nan


def told(alerts: list[Any]) -> list[tuple[str, str, int | None, int | None]]:
    return [(str(a.rule), str(a.state), a.fired_step, a.resolved_step) for a in alerts]


@pytest.mark.parametrize(
    ("norms", "events"),
    [
        # It fires at the second bad step in a row, and is over after three calm ones.
        ([1, 101], []),
        ([101, 1, 101, 1], []),
        ([101, 101], [("firing", 1)]),
        ([101, 99, 101, 101], [("firing", 3)]),
        ([101, 101, 1, 1], [("firing", 1)]),
        ([101, 101, 1, 1, 1], [("firing", 1), ("resolved", 4)]),
        # Between the thresholds (50 to 100) it is neither over nor raised again.
        ([101, 101, 60, 60, 60, 60], [("firing", 1)]),
        ([101, 101, 1, 1, 60, 1, 1, 1], [("firing", 1), ("resolved", 7)]),
        ([101, 60, 101], []),
        ([101, 101, 50, 50, 50], [("firing", 1), ("resolved", 4)]),
        # Steps that are not finite say nothing of the norm: neither bad nor calm.
        ([101, NAN, 101], [("firing", 2)]),
        ([101, 101, 1, NAN, 1, NAN, 1], [("firing", 1), ("resolved", 6)]),
        # A second time is a second alert.
        ([101, 101, 1, 1, 1, 101, 101], [("firing", 1), ("resolved", 4), ("firing", 6)]),
    ],
)
def test_exploding_fires_and_is_over(
    cluster: Any, norms: list[float], events: list[tuple[str, int]]
) -> None:
    """Pending for 2 steps, firing, resolved after 3 calm steps; each told once."""
    job = cluster(names=("a",), rules=None).start()
    job.rules(nonfinite={"enabled": False})
    for step, norm in enumerate(norms):
        job.step(step, [norm])

    assert [(a.state, a.resolved_step or a.fired_step) for a in job.alerts] == events


@pytest.mark.parametrize(
    ("norms", "events"),
    [
        ([0, 0], []),
        ([0, 0, 0], [("firing", 2)]),
        ([0, 0, 1, 0, 0], []),
        ([0, 0, 0, 1.5e-7, 1, 1, 1], [("firing", 2), ("resolved", 6)]),
        ([0, 0, NAN, 0], [("firing", 3)]),
    ],
)
def test_vanishing_fires_and_is_over(
    cluster: Any, norms: list[float], events: list[tuple[str, int]]
) -> None:
    """Pending for 3 steps; from 2e-7 on it is calm."""
    job = cluster(names=("a",)).start()
    job.rules(nonfinite={"enabled": False})
    for step, norm in enumerate(norms):
        job.step(step, [norm])

    assert [(a.state, a.resolved_step or a.fired_step) for a in job.alerts] == events


@pytest.mark.parametrize(
    ("norms", "events"),
    [
        ([NAN], [("firing", 0)]),
        ([math.inf], [("firing", 0)]),
        ([1, NAN, 1, 1, NAN], [("firing", 1)]),
        ([1, NAN, 1, 1, 1], [("firing", 1), ("resolved", 4)]),
    ],
)
def test_nonfinite_fires_at_once(
    cluster: Any, norms: list[float], events: list[tuple[str, int]]
) -> None:
    """One NaN or Inf is enough."""
    job = cluster(names=("a",)).start()
    for step, norm in enumerate(norms):
        job.step(step, [norm])

    assert [(a.state, a.resolved_step or a.fired_step) for a in job.alerts] == events


def test_a_pending_alert_is_shown_but_not_told(cluster: Any) -> None:
    """It stands in the book with the step it began at, and goes without a trace."""
    job = cluster(names=("a",)).start()
    assert job.step(0, [101.0]) == []

    (pending,) = job.attempt.book.alerts()
    assert (pending.state, pending.first_step, pending.fired_step) == (AlertState.PENDING, 0, None)
    job.step(1, [1.0])

    assert job.attempt.book.alerts() == ()


def test_a_disabled_rule_says_nothing(cluster: Any) -> None:
    """Its layers are marked in /health all the same."""
    job = cluster(names=("a",)).start()
    job.rules(exploding={"enabled": False})
    for step in range(4):
        job.step(step, [101.0])

    assert job.alerts == []
    assert job.health()["layers"]["exploding"] == 1


def test_rules_count_from_when_they_are_set(cluster: Any) -> None:
    """A change of rules in the log holds for the steps behind it."""
    job = cluster(names=("a",)).start()
    job.step(0, [20.0])
    job.rules(exploding={"limit": 10, "clear": 5, "for_steps": 1, "severity": "warning"})

    (alert,) = job.step(1, [20.0])

    assert (alert.first_step, alert.severity, alert.origin.threshold) == (1, "warning", 10.0)


def test_alternating_layers_do_not_undo_each_other(cluster: Any) -> None:
    """With two optimizers that take turns, a step without the layer says nothing of it."""
    job = cluster(names=("gen", "critic"))
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


def test_a_layer_that_was_never_bad_does_not_hold_an_alert(cluster: Any) -> None:
    """Hysteresis is for the layers that exploded, not for others that merely are large."""
    job = cluster(names=("bad", "large")).start()
    job.step(0, [500.0, 60.0])
    job.step(1, [500.0, 60.0])
    for step in (2, 3, 4):
        job.step(step, [1.0, 60.0])

    assert told(job.alerts)[-1] == ("exploding", "resolved", 1, 4)
    assert job.alerts[-1].layers == ("bad",)


def test_layers_that_turn_bad_later_join_the_alert(cluster: Any) -> None:
    """One alert, whose layers are the union, in forward order; its origin stays."""
    job = cluster(names=("a", "b", "c")).start()
    job.step(0, [1.0, 1.0, 500.0])
    job.step(1, [1.0, 900.0, 1.0])
    job.step(2, [200.0, 900.0, 1.0])

    (alert,) = job.attempt.book.alerts()
    assert len(job.alerts) == 1
    assert (alert.layers, alert.num_layers) == (("a", "b", "c"), 3)
    assert (alert.origin.layer, alert.origin.step, alert.last_step) == ("c", 0, 2)


def test_layers_that_appear_while_it_fires_join_it_too(cluster: Any) -> None:
    """A layer declared after the alert began has a place behind all others."""
    job = cluster(names=("a",)).start()
    job.step(0, [500.0])
    job.step(1, [500.0])
    job.declare(0, ["a", "new"], manifest_id=2)
    job.stats(0, 2, [1.0, 500.0], manifest_id=2)

    (alert,) = job.attempt.book.alerts()
    assert alert.layers == ("a", "new")
    for step in (3, 4, 5):
        job.stats(0, step, [1.0, 1.0], manifest_id=2)

    assert told(job.alerts)[-1] == ("exploding", "resolved", 1, 5)


def test_only_some_of_many_layers_are_named(cluster: Any) -> None:
    """The count says how many there are."""
    job = cluster(names=[f"l{i}" for i in range(50)]).start()
    (alert,) = job.step(0, NAN)

    assert alert.layers == tuple(f"l{i}" for i in range(MAX_NAMED_LAYERS))
    assert alert.num_layers == 50
    assert "50 layers" in alert.message


def test_each_group_has_its_own_alert(cluster: Any) -> None:
    """A rule fires once per group; layers of no group are in `all`."""
    groups = {"host": (0, 1), "seed": (2,)}
    job = cluster(names=("a", "b", "c", "d"), groups=groups).start()

    alerts = job.step(0, [1.0, NAN, NAN, NAN])

    assert {a.group: a.layers for a in alerts} == {"host": ("b",), "seed": ("c",), "all": ("d",)}
    assert len({a.id for a in alerts}) == 3
    assert {a.group: a.origin.layer for a in alerts} == {"host": "b", "seed": "c", "all": "d"}


def test_a_group_is_over_on_its_own(cluster: Any) -> None:
    """Another group that stays bad does not keep it firing."""
    job = cluster(names=("a", "b"), groups={"host": (0,), "seed": (1,)}).start()
    job.step(0, NAN)
    for step in (1, 2, 3):
        job.step(step, [1.0, NAN])

    assert [(a.group, str(a.state)) for a in job.alerts[2:]] == [("host", "resolved")]


def test_a_group_named_all_hides_no_layer(cluster: Any) -> None:
    """The user's group of that name and the layers of no group are one group then."""
    job = cluster(names=("a", "b"), groups={"all": (0,)}).start()

    (alert,) = job.step(0, NAN)

    assert (alert.group, alert.layers) == ("all", ("a", "b"))


def test_more_groups_than_allowed_leave_no_layer_unwatched(cluster: Any) -> None:
    """Layers of the groups that no longer fit are watched among all others."""
    job = cluster(names=("a",), groups={f"g{i}": () for i in range(64)})
    job.open()
    job.declare(0)
    job.declare(0, ["late"], manifest_id=2, groups={"one too many": (0,)})

    (alert,) = job.stats(0, 0, [NAN], manifest_id=2)

    assert (alert.group, alert.layers) == ("all", ("late",))


def test_several_rules_fire_side_by_side(cluster: Any) -> None:
    """One layer explodes, one vanishes, one is NaN: three alerts."""
    job = cluster(names=("a", "b", "c")).start()
    for step in range(3):
        job.step(step, [500.0, 0.0, NAN])

    assert {(str(a.rule), a.layers) for a in job.alerts} == {
        ("nonfinite", ("c",)),
        ("exploding", ("a",)),
        ("vanishing", ("b",)),
    }


def test_the_id_is_that_of_run_attempt_rule_group_and_first_step(cluster: Any) -> None:
    """Firing and resolved are one alert; what differs in any of the five is another."""
    job = cluster(names=("a",)).start()
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


def test_the_id_is_the_same_for_ever() -> None:
    """Ids in stores of older versions must be found again: the recipe never changes."""
    assert alert_id("gpt2-small", 1, "nonfinite", "all", 412) == "3705bfb9e7b23eb6"


@pytest.mark.parametrize(
    ("frames", "severities"),
    [
        # (norm, loss scale) per step; what the alert says after each.
        ([(NAN, 1024.0)], ["info"]),
        ([(NAN, 1024.0), (NAN, 512.0)], ["info", "warning"]),
        ([(NAN, 1024.0), (1.0, 512.0), (NAN, 512.0)], ["info", "info", "info"]),
        ([(NAN, 2.0), (NAN, 1.0), (NAN, 0.5)], ["info", "warning", "critical"]),
        ([(NAN, 0.5)], ["critical"]),
        ([(NAN, NAN)], ["critical"]),
        ([(NAN, 8.0), (NAN, 4.0), (1.0, 2.0), (NAN, 2.0)], ["info", *["warning"] * 3]),
        ([(NAN, None)], ["critical"]),
        ([(NAN, 1024.0), (NAN, None)], ["info", "critical"]),
    ],
)
def test_a_step_that_a_scaler_skips_matters_less(
    cluster: Any, frames: list[Any], severities: list[str]
) -> None:
    """One is routine, several in a row are not, and with the scale used up it is as without."""
    job = cluster(names=("a",)).start()
    shown = []
    for step, (norm, scale) in enumerate(frames):
        job.step(step, [norm], loss_scale=scale)
        (alert,) = job.attempt.book.alerts()
        shown.append(alert.severity)

    assert shown == severities
    # An event for the first, and one for each rise.
    steps = [step for step in range(len(frames)) if severities[: step + 1].count(shown[step]) == 1]
    assert [(a.severity, a.raised_step) for a in job.alerts] == [
        (severities[step], step or None) for step in steps
    ]


def test_what_a_skipped_step_matters_can_be_set(cluster: Any) -> None:
    """Each of the rule's own settings."""
    job = cluster(names=("a",)).start()
    job.rules(
        nonfinite={
            "skipped_severity": "warning",
            "skips": 3,
            "skips_severity": "critical",
            "min_loss_scale": 0.25,
        }
    )
    shown = []
    for step in range(3):
        job.step(step, NAN, loss_scale=0.5)
        shown.append(str(job.attempt.book.alerts()[0].severity))

    assert shown == ["warning", "warning", "critical"]


def test_a_scaler_makes_no_other_rule_milder(cluster: Any) -> None:
    """An explosion that is finite was not skipped."""
    job = cluster(names=("a",)).start()
    for step in range(2):
        job.step(step, [500.0], loss_scale=1024.0)

    assert [(a.rule, str(a.severity)) for a in job.alerts] == [("exploding", "critical")]


def test_trouble_between_reports_is_told_with_its_own_step(cluster: Any) -> None:
    """The alert and its id go by the step that was bad, not by that of the report."""
    job = cluster(names=("a", "b")).start()
    job.step(10)
    (alert,) = job.step(20, l2_max=[1.0, NAN], first_nonfinite_step=13)

    assert (alert.first_step, alert.origin.step, alert.origin.layer) == (13, 13, "b")
    assert (alert.fired_step, alert.last_step) == (20, 20)
    assert alert.id == alert_id("gpt", 1, "nonfinite", "all", 13)
    assert job.health()["first_bad"] == {"step": 13, "rank": 0, "layer": "b", "kind": "nan"}


def test_an_explosion_between_reports_fires(cluster: Any) -> None:
    """Though the norm at the report is calm."""
    job = cluster(names=("a",)).start()
    for step in (10, 20):
        job.step(step, [1.0], l2_max=[500.0])

    assert told(job.alerts) == [("exploding", "firing", 20, None)]
    assert job.health()["worst_layers"] == [{"name": "a", "why": "exploding", "l2": 500.0}]


def test_an_origin_shows_the_steps_before(cluster: Any) -> None:
    """The norms of the same layer in the five frames before, oldest first, without the bad one."""
    job = cluster(names=("a", "b")).start()
    for step in range(7):
        job.step(step, [1.0, float(step)])

    (alert,) = job.step(7, [1.0, NAN])

    assert alert.origin.before == ((2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 6.0))
    assert alert.to_dict()["origin"]["before"][0] == {"step": 2, "l2": 2.0}


def test_an_origin_whose_layer_is_not_known_has_nothing_before(cluster: Any) -> None:
    """The norms of some other layer would be a guess."""
    job = cluster(names=("a", "b"), order="registration").start()
    job.step(0)
    (alert,) = job.step(1, NAN)

    assert (alert.origin.layer, alert.origin.before) == (None, ())
    assert alert.layers == ("a", "b")
    assert alert.message == "NaN in the gradient of a layer not known at step 1 on rank 0, 2 layers"


def test_an_origin_at_the_first_step_has_nothing_before(cluster: Any) -> None:
    """Also where the layer appears only then."""
    job = cluster(names=("a",)).start()
    (alert,) = job.step(0, NAN)

    assert alert.origin.before == ()


def test_a_message_says_all_of_it_in_one_line(cluster: Any) -> None:
    """What, where, when and on which rank; and when it was over."""
    job = cluster(world=2, names=("h.0", "h.1")).start()
    job.stats(0, 0, [1.0, NAN], loss=1.0)
    (fired,) = job.stats(1, 0, [1.0, NAN], loss=NAN)
    for step in (1, 2, 3):
        job.step(step)

    assert fired.message == "NaN in the gradient of h.1 at step 0 on rank 1"
    assert job.alerts[-1].message == f"{fired.message}, over at step 3"


@pytest.mark.parametrize(
    ("norm", "says"),
    [
        (150.0, "gradient of a has L2 norm 150 > 100 at step 0 on ranks 0, 1"),
        (0.0, "gradient of a has L2 norm 0 < 1e-07 at step 0 on ranks 0, 1"),
        (math.inf, "Inf in the gradient of a at step 0 on a rank that cannot be known"),
    ],
)
def test_a_message_names_value_and_limit(cluster: Any, norm: float, says: str) -> None:
    """Numbers as they broke the rule; what is not known is said to be so."""
    job = cluster(world=2, names=("a",)).start()
    for step in range(3):
        job.step(step, [norm])

    assert job.alerts[0].message == says


def test_a_name_from_the_wire_stays_inert_in_a_message(cluster: Any) -> None:
    """Escape sequences, line ends and direction marks are written out; the name itself is kept."""
    name = "a\x1b[2J\n\u202eb é"
    job = cluster(names=(name,)).start()
    (alert,) = job.step(0, NAN)

    assert alert.origin.layer == name
    assert r"a\x1b[2J\n\u202eb é at" in alert.message
    assert printable("plain.0.weight") == "plain.0.weight"


def test_resolved_alerts_are_kept_newest_first_and_not_without_bound(cluster: Any) -> None:
    """Live ones come first; of the others the last 256 stay in memory."""
    job = cluster(names=("a",)).start()
    job.rules(nonfinite={"clear_steps": 1})
    for step in range(0, 2 * (MAX_KEPT + 10), 2):
        job.step(step, NAN)
        job.step(step + 1)
    last = 2 * (MAX_KEPT + 10)
    job.step(last, NAN)
    kept = job.attempt.book.alerts()

    assert [a.first_step for a in kept] == list(range(last, last - 2 * MAX_KEPT - 1, -2))
    assert [str(a.state) for a in kept[:2]] == ["firing", "resolved"]


def test_as_plain_data_it_has_a_readable_time(cluster: Any) -> None:
    """Nanoseconds would lose digits in JSON readers; nested values are plain, too."""
    job = cluster(names=("a",)).start()
    (alert,) = job.step(0, NAN)
    plain = alert.to_dict()

    assert "updated_ns" not in plain
    assert plain["updated_at"] == isotime(alert.updated_ns)
    assert isotime(1_763_000_000_123_456_789) == "2025-11-13T02:13:20.123+00:00"
    assert plain["origin"]["ranks"] == (0,)
    assert (plain["rule"], plain["state"], plain["layers"]) == ("nonfinite", "firing", ("a",))
