"""What the fold costs is told by its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from benchmarks.alerts.costs import REST, WHOLE, Costs, measure
from benchmarks.alerts.store import Collection
from gradwatch_server.core.alerting.rules.registry import REGISTRY


def test_what_is_measured_within_another_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what yields is done when it returns."""
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    costs = Costs()

    def spend(seconds: float) -> Iterator[float]:
        now[0] += seconds
        yield seconds

    inner = costs.timed(spend, "inner")

    def around() -> list[float]:
        now[0] += 1.0
        return [*inner(2.0), *inner(3.0)]

    assert costs.timed(around, "outer")() == [2.0, 3.0]
    assert costs.seconds == {"inner": 5.0, "outer": 1.0}


def test_the_parts_of_the_fold_are_measured(runs: Collection) -> None:
    """Every rule has its own; those that judge each frame took some time."""
    found = measure(runs.read("mlp-1"))
    assert {rule.name for rule in REGISTRY} < set(found)
    assert min(found[name] for name in (WHOLE, REST, "nonfinite", "spike", "loss")) > 0
