"""Hints are of rules that there are, and come with the alert."""

from __future__ import annotations

from gradwatch_server.core.alerting.hints import HINTS, hints_for
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from tests.support.core import Cluster

AHEAD = {"rank_divergence"}


def test_hints_are_of_rules() -> None:
    assert set(HINTS) <= {rule.name for rule in REGISTRY} | AHEAD
    assert hints_for("records_lost") == ()


def test_an_alert_has_those_of_its_rule() -> None:
    job = Cluster(names=("a",)).start()
    job.step(0, [1.0])
    (alert,) = job.step(1, [500.0])

    assert alert.to_dict()["hints"] == list(HINTS["exploding"])
