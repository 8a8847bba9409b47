"""Alerts under two sets of rules: which are the same incident."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_server.core.alerting.comparison import Incident, compare, incidents

pytestmark = pytest.mark.usefixtures("limit_alone")


def incident(first: int, resolved: int | None = None, **changes: Any) -> Incident:
    settings: dict[str, Any] = {
        "id": f"{first:x}",
        "attempt": 1,
        "rule": "exploding",
        "group": "all",
        "severity": "warning",
        "first_step": first,
        "last_step": first,
        "resolved_step": resolved,
        "layer": "a",
        "num_layers": 1,
        "message": "",
    }
    return Incident(**settings | changes)


def verdicts(now: list[Incident], before: list[Incident], judged: int = 0) -> list[Any]:
    return [
        (str(row.verdict), row.now and row.now.first_step, row.before and row.before.first_step)
        for row in compare(now, before, {1: judged})
    ]


def test_incidents_at_the_same_time_are_the_same() -> None:
    """Each is paired once; what is left fires under one of them only."""
    now = [incident(3, 9), incident(20, 30), incident(50)]
    before = [incident(5, 7), incident(8, 9), incident(31, 33), incident(60)]

    assert verdicts(now, before) == [
        ("both", 3, 5),
        ("only before", None, 8),
        ("only now", 20, None),
        ("only before", None, 31),
        ("both", 50, 60),
    ]


@pytest.mark.parametrize("key", ["attempt", "rule", "group"])
def test_those_of_another_kind_are_not(key: str) -> None:
    """However alike they are otherwise."""
    other = incident(5, 7, **{key: 2 if key == "attempt" else "other"})
    rows = compare([incident(5, 7)], [other], {1: 0, 2: 0})

    assert sorted(row.verdict for row in rows) == ["only before", "only now"]


def test_what_fired_before_the_first_record_that_is_kept_is_not_judged() -> None:
    """Nor is an attempt of which nothing is kept."""
    before = [incident(5, 7), incident(12, 14), incident(3, attempt=7)]

    assert verdicts([], before, judged=10) == [
        ("not judged", None, 5),
        ("only before", None, 12),
        ("not judged", None, 3),
    ]


def test_an_incident_is_what_the_alert_came_to(cluster: Any) -> None:
    """Its last event has it."""
    job = cluster(names=("a", "b")).start()
    for step, norms in enumerate([[500.0, 1.0]] * 2 + [[500.0, 500.0]] + [[1.0, 1.0]] * 3):
        job.step(step, norms)
    (found,) = incidents(alert.to_dict() for alert in job.alerts)

    assert (found.first_step, found.last_step, found.resolved_step) == (0, 2, 5)
    assert (found.layer, found.num_layers, found.severity) == ("a", 2, "critical")
