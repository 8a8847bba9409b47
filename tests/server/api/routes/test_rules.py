"""The rules in force over HTTP."""

from __future__ import annotations

import pytest

from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.judge.detector import FALSE_ALERTS_PER_100K
from tests.support.aggregator import Aggregator
from tests.support.problems import problem

pytestmark = pytest.mark.slow


def test_every_rule_is_listed_with_its_settings(service: Aggregator) -> None:
    answer = service.json("/rules")
    rules = answer["rules"]

    assert [each["rule"] for each in rules] == [rule.name for rule in REGISTRY]
    assert {each["rule"]: each["settings"] for each in rules} == {
        rule.name: rule().model_dump(mode="json") for rule in REGISTRY
    }
    for each in rules:
        assert each["summary"]
        assert each["raised_when"]
        assert "](" not in each["raised_when"] + each["to_tune_it"]
    assert answer["false_alerts_per_100k_steps"] == FALSE_ALERTS_PER_100K


def test_of_a_run_each_rule_says_how_many_layers_it_watches(service: Aggregator, run: str) -> None:
    service.peer(run=run).attach(("a", "b")).steps(0, 1.0, 1.0)
    service.reaches(run, 1)
    watches = {each["rule"]: each["watches"] for each in service.json(f"/rules?run={run}")["rules"]}

    assert watches["vanishing"] == {"run": True, "layers": 2, "warning": None}
    assert problem(service.get("/rules?run=nobody"))[0] == 404
