"""The registry takes a rule only if it is whole."""

from __future__ import annotations

import pytest
from pydantic import Field

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.exploding import ExplodingRule
from gradwatch_server.core.alerting.rules.registry import REGISTRY, Registry, UnknownRuleError
from gradwatch_server.core.alerting.rules.vanishing import VanishingRule


class Undescribed(ExplodingRule):
    """A rule with a setting that says nothing of itself."""

    name = "undescribed"
    patience: int = Field(1)


def test_the_order_is_that_of_registration() -> None:
    """Evaluation, events of a step, and the worst layers go by it."""
    names = [
        *("nonfinite", "exploding", "dead_layer", "vanishing", "layer_missing", "loss"),
        *("slow", "groups", "gain"),
        *("loss_scaler", "rank_divergence", "rank_outlier"),
        *("not_learning", "weights_unchanged", "not_zeroed"),
        *("repeated_gradient", "same_batch", "records_lost", "liveness"),
    ]

    assert [rule.name for rule in REGISTRY] == names
    assert [rule.name for rule in Rules().counted] == ["nonfinite", "exploding", "vanishing"]


def test_a_name_is_there_once() -> None:
    with pytest.raises(ValueError, match="there is a rule 'exploding' already: ExplodingRule"):
        REGISTRY.add(ExplodingRule)


def test_a_setting_without_a_description_is_refused() -> None:
    with pytest.raises(ValueError, match="setting 'patience' of rule 'undescribed' has no desc"):
        REGISTRY.add(Undescribed)


def test_a_rule_comes_after_those_it_yields_to() -> None:
    with pytest.raises(UnknownRuleError, match="no rule 'exploding'; the rules are "):
        Registry(VanishingRule, ExplodingRule)
    assert len(list(Registry(ExplodingRule, VanishingRule))) == 2


def test_what_is_not_there_cannot_be_taken_out() -> None:
    """The error says what is there."""
    registry = Registry(ExplodingRule)
    with pytest.raises(UnknownRuleError, match="no rule 'exploded'; the rules are exploding"):
        registry.remove("exploded")
    registry.remove("exploding")

    assert list(registry) == []
