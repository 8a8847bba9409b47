"""The `[rules]` table: which values are allowed, and what is said of others."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from gradwatch_server.core.alerting.flags import ALL_SIGNS
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.patterns import matches
from gradwatch_server.core.alerting.rules.registry import UnknownRuleError
from gradwatch_server.core.alerting.rules.table import BUDGET
from gradwatch_server.core.frames.frame import Frame


def test_defaults_are_those_of_the_design() -> None:
    """Limits, patience and severities."""
    rules = Rules().model_dump(mode="json")
    of_run = {"enabled": True, "clear_steps": 3, "runs": []}
    common = of_run | {"layers": [], "groups": []}
    once = of_run | {"for_steps": 1, "clear_steps": 1}
    warning = common | {"for_steps": 1, "severity": "warning"}
    info_of_run = of_run | {"for_steps": 1, "severity": "info"}

    assert rules == {
        "false_alerts_per_100k_steps": 5.0,
        "nonfinite": common
        | {"for_steps": 1, "severity": "critical"}
        | {"skipped_severity": "info"},
        "exploding": warning | {"clear_steps": 16, "limit": 100.0},
        "dead_layer": warning,
        "vanishing": warning | {"for_steps": 3, "limit": 1e-7, "clear": 2e-7},
        "layer_missing": warning | {"missing_steps": 3, "uncertain_severity": "info"},
        "loss": of_run | {"for_steps": 1, "severity": "warning", "clear_steps": 16},
        "slow": of_run | {"for_steps": 1, "severity": "warning", "clear_steps": 16},
        "groups": info_of_run
        | {"for_steps": 16, "clear_steps": 16}
        | {"seed": "seed", "host": "host", "limit": 0.01, "clear": 0.02},
        "gain": of_run
        | {"for_steps": 3, "severity": "warning"}
        | {"low": 0.5, "high": 2.0, "share": 0.5, "clear": 0.25},
        "loss_scaler": once
        | {"skips": 3, "critical_skips": 8, "max_skips": 5, "calibration_skips": 16}
        | {"severity": "warning", "falls": 4, "min_loss_scale": 1.0},
        "rank_divergence": warning
        | {"for_steps": 2, "clear_steps": 8, "critical_steps": 3}
        | {"tolerance": 1e-6, "mixed_tolerance": 5e-5},
        "rank_outlier": warning | {"clear_steps": 8, "ratio": 3.0, "factor": 30.0},
        "not_learning": of_run | {"for_steps": 8, "severity": "warning", "warning_steps": 200},
        "weights_unchanged": warning | {"for_steps": 4, "warning_steps": 200},
        "not_zeroed": of_run | {"for_steps": 4, "severity": "warning", "warning_steps": 20},
        "repeated_gradient": of_run | {"for_steps": 4, "severity": "warning", "warning_steps": 20},
        "same_batch": of_run | {"for_steps": 8, "severity": "warning", "warning_steps": 20},
        "records_lost": of_run | {"for_steps": 1, "severity": "warning"},
        "liveness": once
        | {"severity": "critical", "silent_s": 10.0, "behind_frames": 8}
        | {"info_s": 30.0, "info_factor": 10.0}
        | {"warning_s": 300.0, "warning_factor": 5.0, "critical_s": 1800.0},
    }


@pytest.mark.parametrize(
    ("rules", "key", "says"),
    [
        ({"explodng": {}}, "explodng", "the rules are nonfinite, exploding, dead_layer, vanishing"),
        ({"exploding": {"limt": 5}}, "exploding.limt", "the keys of exploding are enabled, fo"),
        ({"gain": {"layers": ["h.*"]}}, "gain.layers", "the keys of gain are enabled"),
        ({"exploding": {"limit": 0}}, "exploding.limit", "greater than 0"),
        ({"exploding": {"limit": -1}}, "exploding.limit", "greater than 0"),
        ({"exploding": {"limit": math.nan}}, "exploding.limit", "finite"),
        ({"exploding": {"limit": math.inf}}, "exploding.limit", "finite"),
        ({"exploding": {"limit": "big"}}, "exploding.limit", "number"),
        ({"vanishing": {"limit": 5, "clear": 4}}, "vanishing", "clear (4) must not be below"),
        ({"groups": {"limit": 0.5}}, "groups", "clear (0.02) must not be below limit"),
        ({"groups": {"seed": "host"}}, "groups", "must be two groups, not both 'host'"),
        ({"groups": {"seed": ""}}, "groups.seed", "at least 1 character"),
        ({"vanishing": {"for_steps": 0}}, "vanishing.for_steps", "greater than or equal to 1"),
        ({"nonfinite": {"clear_steps": 1e9}}, "nonfinite.clear_steps", "less than or equal"),
        ({"nonfinite": {"severity": "fatal"}}, "nonfinite.severity", "'warning'"),
        ({"loss_scaler": {"skips": 0}}, "loss_scaler.skips", "greater than or equal to 1"),
        ({"loss_scaler": {"min_loss_scale": 0}}, "loss_scaler.min_loss_scale", "greater than 0"),
        ({"rank_divergence": {"tolerance": 0}}, "rank_divergence.tolerance", "greater than 0"),
        ({"rank_outlier": {"ratio": -3}}, "rank_outlier.ratio", "greater than 0"),
        ({"nonfinite": {"skips": 2}}, "nonfinite.skips", "the keys of nonfinite are"),
        ({"gain": {"low": 2, "high": 2}}, "gain", "low (2) must be below high (2)"),
        ({"gain": {"share": 0.5, "clear": 0.6}}, "gain", "clear (0.6) must not be above share"),
        ({"gain": {"share": 1}}, "gain.share", "less than 1"),
        ({"nonfinite": {"enabled": "maybe"}}, "nonfinite.enabled", "boolean"),
        (
            {"nonfinite": {"layers": "h.*"}},
            "nonfinite.layers",
            'a list of patterns, such as ["h.*"]',
        ),
        ({"nonfinite": {"runs": [""]}}, "nonfinite.runs.0", "at least 1 character"),
        ({"nonfinite": {"runs": ["!"]}}, "nonfinite.runs.0", "match pattern"),
        ({"nonfinite": {"groups": [5]}}, "nonfinite.groups.0", "valid string"),
        ({"nonfinite": {"layers": ["a"] * 65}}, "nonfinite.layers", "at most 64 items"),
        (
            {"false_alerts_per_100k_steps": 0},
            "false_alerts_per_100k_steps",
            "greater than or equal to 0.01",
        ),
        ({"nonfinite": 5}, "nonfinite", "valid dictionary or instance of NonfiniteRule"),
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
    table = {"false_alerts_per_100k_steps": 0.5, "vanishing": {"limit": 1e-9, "severity": "info"}}
    rules = Rules.model_validate(table)

    assert (rules.false_alerts_per_100k_steps, rules != Rules()) == (0.5, True)
    assert Rules.model_validate(rules.model_dump(mode="json")) == rules


def test_a_rule_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnknownRuleError, match="the rules are nonfinite, exploding") as caught:
        Rules()["explodng"]

    assert (caught.value.name, caught.value.known[:2]) == ("explodng", ("nonfinite", "exploding"))


def test_rules_are_equal_by_their_settings_alone() -> None:
    used, other = Rules(), Rules.model_validate({"exploding": {"limit": 5}})
    assert used.taking(Frame)

    assert used == Rules() != other
    assert used.model_dump() == Rules().model_dump()


def test_observations_that_no_rule_takes_have_none() -> None:
    assert list(Rules().taking(str)) == []


@pytest.mark.parametrize(
    ("patterns", "matching"),
    [
        ((), ["head", "h.0.a", "h.1.a", "H.0.a"]),
        (("h.*",), ["h.0.a", "h.1.a"]),
        (("h.?.a", "head"), ["head", "h.0.a", "h.1.a"]),
        (("h.[!0].a",), ["h.1.a"]),
        (("!h.*",), ["head", "H.0.a"]),
        (("h*", "!*.1.*"), ["head", "h.0.a"]),
        (("x",), []),
    ],
)
def test_patterns_are_those_of_fnmatch(patterns: tuple[str, ...], matching: list[str]) -> None:
    names = ["head", "h.0.a", "h.1.a", "H.0.a"]

    assert [name for name in names if matches(patterns, name)] == matching


def test_rules_of_other_runs_are_not_asked_whatever_was_asked_before() -> None:
    rules = Rules.model_validate({"exploding": {"runs": ["other"]}, BUDGET: 0.5})
    for each in (rules, rules.watching("gpt")):
        asked = {name for name, _ in (*each.taking(Frame), *each.flagging[Frame, ALL_SIGNS])}
        assert ("exploding" in asked) == (each is rules)

    assert rules.watching("gpt").false_alerts_per_100k_steps == 0.5
