"""The `[rules]` table: which values are allowed, and what is said of others."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.registry import UnknownRuleError
from gradwatch_server.core.frames.frame import Frame


def test_defaults_are_those_of_the_design() -> None:
    """Limits, patience and severities."""
    rules = Rules().model_dump(mode="json")
    common = {"enabled": True, "clear_steps": 3}

    assert rules == {
        "nonfinite": common
        | {"for_steps": 1, "severity": "critical"}
        | {"skipped_severity": "info"},
        "exploding": common
        | {"for_steps": 2, "severity": "critical", "limit": 100.0, "clear": 50.0},
        "vanishing": common | {"for_steps": 3, "severity": "warning", "limit": 1e-7, "clear": 2e-7},
        "gain": common
        | {"for_steps": 3, "severity": "warning"}
        | {"low": 0.5, "high": 2.0, "share": 0.5, "clear": 0.25},
        "records_lost": common | {"for_steps": 1, "severity": "warning"},
    }


@pytest.mark.parametrize(
    ("rules", "key", "says"),
    [
        ({"explodng": {}}, "explodng", "the rules are nonfinite, exploding, vanishing, gain, rec"),
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
        ({"nonfinite": {"skips": 2}}, "nonfinite.skips", "Extra"),
        ({"skipped_steps": {"skips": 0}}, "skipped_steps.skips", "greater than or equal to 1"),
        ({"loss_scale": {"min_loss_scale": 0}}, "loss_scale.min_loss_scale", "greater than 0"),
        ({"rank_divergence": {"tolerance": 0}}, "rank_divergence.tolerance", "greater than 0"),
        ({"rank_outlier": {"ratio": -3}}, "rank_outlier.ratio", "greater than 0"),
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


def test_what_another_version_logged_is_read_as_far_as_it_is_known() -> None:
    """Settings and rules that are gone are left out; what cannot be is as by default."""
    logged = {
        "nonfinite": {"skips": 2, "clear_steps": 7},
        "gone": {"limit": 3.0},
        "gain": {"low": 5.0, "high": 2.0},
    }
    rules = Rules.from_log(logged)

    assert rules["nonfinite"].clear_steps == 7
    assert rules["gain"] == Rules()["gain"]
    assert Rules.from_log(Rules().model_dump(mode="json")) == Rules()


def test_a_rule_that_is_not_there_is_refused_with_those_that_are() -> None:
    """Also in a program."""
    with pytest.raises(UnknownRuleError, match="the rules are nonfinite, exploding") as caught:
        Rules()["explodng"]

    assert (caught.value.name, caught.value.known[:2]) == ("explodng", ("nonfinite", "exploding"))


def test_rules_are_equal_by_their_settings_alone() -> None:
    """Those in the log are compared with those of the file, whichever has been used by then."""
    used, other = Rules(), Rules.model_validate({"exploding": {"limit": 5, "clear": 5}})
    assert used.taking(Frame)

    assert used == Rules() != other
    assert used.model_dump() == Rules().model_dump()


def test_observations_that_no_rule_takes_have_none() -> None:
    assert list(Rules().taking(str)) == []
