"""The rules: what is bad, and which values of their settings are allowed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gradwatch_server.core.alerting.rules import (
    GainRule,
    Rules,
    flags,
    gain_verdict,
    verdict,
    worst_gain,
    worst_layer,
)
from gradwatch_wire.health import Severity

ABOVE = float(np.nextafter(100.0, math.inf))
BELOW = float(np.nextafter(1e-7, 0.0))


@pytest.mark.parametrize(
    ("l2", "what"),
    [
        (1.0, set()),
        (100.0, set()),
        (ABOVE, {"exploding"}),
        (1e308, {"exploding"}),
        (1e-7, set()),
        (BELOW, {"vanishing"}),
        (5e-324, {"vanishing"}),
        (0.0, {"vanishing"}),
        (math.nan, {"nonfinite"}),
        (math.inf, {"nonfinite"}),
    ],
)
def test_a_layer_is_marked_beyond_the_default_thresholds(
    make_part: Any, make_frame: Any, l2: float, what: set[str]
) -> None:
    """100 and 1e-7 themselves are fine; a layer is never two things at once."""
    marked = flags(make_frame(make_part([l2])), Rules())

    assert {
        name for name in ("nonfinite", "exploding", "vanishing") if getattr(marked, name)[0]
    } == what


def test_thresholds_can_be_set(make_part: Any, make_frame: Any) -> None:
    """Each rule goes by its own limit."""
    rules = Rules.model_validate(
        {"exploding": {"limit": 2, "clear": 1}, "vanishing": {"limit": 0.5, "clear": 0.6}}
    )
    marked = flags(make_frame(make_part([2.0, 2.5, 0.5, 0.4])), rules)

    assert marked.exploding.tolist() == [False, True, False, False]
    assert marked.vanishing.tolist() == [False, False, False, True]


def test_any_rank_is_enough(make_part: Any, make_frame: Any) -> None:
    """The largest norm over ranks explodes, the smallest vanishes."""
    marked = flags(make_frame(make_part([1.0, 1.0]), make_part([200.0, 0.0], rank=1)), Rules())

    assert marked.exploding.tolist() == [True, False]
    assert marked.vanishing.tolist() == [False, True]


def test_a_layer_that_explodes_on_one_rank_and_vanishes_on_another_explodes(
    make_part: Any, make_frame: Any
) -> None:
    """It counts once, for the worse of the two."""
    marked = flags(make_frame(make_part([0.0]), make_part([200.0], rank=1)), Rules())

    assert (marked.exploding[0], marked.vanishing[0]) == (True, False)


def test_absent_layers_are_nothing(make_part: Any, make_frame: Any) -> None:
    """A layer without a record does not vanish."""
    frame = make_frame(make_part([1.0], index=[2]))

    assert not any(array.any() for array in vars_of(flags(frame, Rules())))


def vars_of(marked: Any) -> list[Any]:
    return [marked.nonfinite, marked.exploding, marked.vanishing]


@pytest.mark.parametrize(
    ("name", "l2", "raised", "held"),
    [
        ("exploding", 100.5, True, True),
        ("exploding", 100.0, False, True),
        ("exploding", 50.5, False, True),
        ("exploding", 50.0, False, False),
        ("vanishing", BELOW, True, True),
        ("vanishing", 1e-7, False, True),
        ("vanishing", 1.9e-7, False, True),
        ("vanishing", 2e-7, False, False),
        ("nonfinite", math.nan, True, True),
        ("nonfinite", 1e308, False, False),
    ],
)
def test_an_alert_is_over_at_another_threshold_than_it_was_raised_at(
    make_part: Any, make_frame: Any, name: Any, l2: float, raised: bool, held: bool
) -> None:
    """Between the two it stays as it is."""
    frame = make_frame(make_part([l2]))
    judged = verdict(name, frame, flags(frame, Rules()), Rules())

    assert (judged.raised[0], judged.held[0]) == (raised, held)


@given(l2=st.lists(st.floats(0.0), min_size=1, max_size=6))
def test_what_is_raised_is_held_and_what_is_held_is_seen(
    make_part: Any, make_frame: Any, l2: list[float]
) -> None:
    """The three masks contain one another, whatever the numbers."""
    frame = make_frame(make_part(l2))
    for name in ("nonfinite", "exploding", "vanishing"):
        judged = verdict(name, frame, flags(frame, Rules()), Rules())

        assert not (judged.raised & ~judged.held).any()
        assert not (judged.held & ~judged.seen).any()


def test_rules_of_norms_cannot_see_nonfinite_layers(make_part: Any, make_frame: Any) -> None:
    """An Inf is no large norm and a NaN is no small one: another rule has them."""
    frame = make_frame(make_part([math.nan, math.inf, 1.0, 1.0], nans=[0, 0, 1, 0]))
    marked = flags(frame, Rules())

    assert verdict("exploding", frame, marked, Rules()).seen.tolist() == [False] * 3 + [True]
    assert verdict("vanishing", frame, marked, Rules()).seen.tolist() == [False] * 3 + [True]
    assert verdict("nonfinite", frame, marked, Rules()).seen.tolist() == [True] * 4


def test_the_worst_layer_breaks_the_rule_most(make_part: Any, make_frame: Any) -> None:
    """The largest of those marked explodes most, the smallest vanishes most."""
    frame = make_frame(make_part([200.0, 900.0, 1e9, 0.0, 1e-9, 1e-12]))
    exploding = np.array([True, True, False, False, False, False])
    vanishing = np.array([False, False, False, False, True, True])

    assert worst_layer("exploding", frame, exploding) == 1
    assert worst_layer("vanishing", frame, vanishing) == 5


@pytest.mark.parametrize(
    ("gains", "raised", "held", "seen"),
    [
        ([1.0, 1.0, 1.0, 1.0], False, False, True),
        ([2.0, 0.5], False, False, True),
        ([3.0, 1.0, 1.0, 1.0], False, False, True),
        ([3.0, 0.4, 1.0, 1.0], False, True, True),
        ([3.0, 0.4, 3.0, 1.0], True, True, True),
        ([3.0, None, None], True, True, True),
        ([1.0, None, None], False, False, True),
        ([math.inf, 0.0, 1.0], True, True, True),
        ([None, None], False, False, False),
        ([], False, False, False),
    ],
)
def test_gains_are_judged_by_how_many_are_outside(
    gains: list[float | None], raised: bool, held: bool, seen: bool
) -> None:
    """More than half of those there are raise it, a quarter or less is calm."""
    judged = gain_verdict(gains, GainRule())

    assert (judged.raised[0], judged.held[0], judged.seen[0]) == (raised, held, seen)


@pytest.mark.parametrize(
    ("gains", "worst"),
    [
        ([3.0, 5.0, 4.0], 1),
        ([3.0, 0.1, 5.0], 1),
        ([None, 1e9, math.inf], 2),
        ([0.0, 1e9], 0),
        ([1.9, 0.4, None], 1),
    ],
)
def test_the_worst_gain_is_the_farthest_from_one(gains: list[float | None], worst: int) -> None:
    """As a factor: a tenth is as far as ten times."""
    assert worst_gain(gains, GainRule()) == worst


def test_the_worst_gain_is_one_that_broke_the_rule() -> None:
    """With a range that is not even about 1, a gain inside may be farther from it."""
    assert worst_gain([0.1, 3.0], GainRule(low=0.05)) == 1


def test_defaults_are_those_of_the_design() -> None:
    """Limits, patience and severities as `docs/rules.md` lists them."""
    rules = Rules()

    assert (rules.exploding.limit, rules.exploding.clear) == (100.0, 50.0)
    assert (rules.vanishing.limit, rules.vanishing.clear) == (1e-7, 2e-7)
    assert (rules.nonfinite.for_steps, rules.exploding.for_steps, rules.vanishing.for_steps) == (
        1,
        2,
        3,
    )
    assert rules.nonfinite.severity == rules.exploding.severity == Severity.CRITICAL
    assert rules.vanishing.severity == rules.gain.severity == Severity.WARNING
    assert (rules.gain.low, rules.gain.high, rules.gain.share) == (0.5, 2.0, 0.5)


@pytest.mark.parametrize(
    ("rules", "key", "says"),
    [
        ({"explodng": {}}, "explodng", "Extra"),
        ({"exploding": {"limt": 5}}, "exploding.limt", "Extra"),
        ({"exploding": {"limit": 0}}, "exploding.limit", "greater than 0"),
        ({"exploding": {"limit": -1}}, "exploding.limit", "greater than 0"),
        ({"exploding": {"limit": math.nan}}, "exploding.limit", "finite"),
        ({"exploding": {"limit": math.inf}}, "exploding.limit", "finite"),
        ({"exploding": {"limit": "big"}}, "exploding.limit", "number"),
        ({"exploding": {"limit": 5, "clear": 6}}, "exploding", "clear (6) must not be above"),
        ({"vanishing": {"limit": 5, "clear": 4}}, "vanishing", "clear (4) must not be below"),
        ({"vanishing": {"for_steps": 0}}, "vanishing.for_steps", "greater than or equal to 1"),
        ({"nonfinite": {"clear_steps": 1e9}}, "nonfinite.clear_steps", "less than or equal"),
        ({"nonfinite": {"severity": "fatal"}}, "nonfinite.severity", "'warning'"),
        ({"nonfinite": {"skips": 0}}, "nonfinite.skips", "greater than or equal to 1"),
        ({"nonfinite": {"min_loss_scale": 0}}, "nonfinite.min_loss_scale", "greater than 0"),
        ({"gain": {"low": 2, "high": 2}}, "gain", "low (2) must be below high (2)"),
        ({"gain": {"share": 0.5, "clear": 0.6}}, "gain", "clear (0.6) must not be above share"),
        ({"gain": {"share": 1}}, "gain.share", "less than 1"),
        ({"nonfinite": {"enabled": "maybe"}}, "nonfinite.enabled", "boolean"),
    ],
)
def test_a_bad_value_is_refused_by_name(rules: dict[str, Any], key: str, says: str) -> None:
    """The error points at the offending key and says what is allowed there."""
    with pytest.raises(ValidationError) as caught:
        Rules.model_validate(rules)
    (error,) = caught.value.errors()

    assert ".".join(map(str, error["loc"])) == key
    assert says in error["msg"]


def test_rules_survive_the_log() -> None:
    """As plain data and back they are the same rules."""
    rules = Rules.model_validate({"vanishing": {"limit": 1e-9, "severity": "info"}})

    assert Rules.model_validate(rules.model_dump(mode="json")) == rules
