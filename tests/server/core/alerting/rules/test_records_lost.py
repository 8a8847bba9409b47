"""The rule about lost records: one alert per episode."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_wire.health import AlertState, Severity
from tests.support.core import Cluster


def states(alerts: list[Alert]) -> list[tuple[str, str]]:
    return [(alert.rule, alert.state.value) for alert in alerts]


def test_a_declared_loss_fires_at_once_and_names_rank_and_count() -> None:
    job = Cluster(world=2).start()
    job.step(0)
    job.step(1)
    (alert,) = job.gap(1, 3)

    assert (alert.rule, alert.group, alert.state) == ("records_lost", "records", AlertState.FIRING)
    assert (alert.severity, alert.layers, alert.num_layers) == (Severity.WARNING, (), 0)
    assert (alert.origin.rank, alert.origin.step, alert.origin.value) == (1, 2, 3.0)
    assert job.health()["alerts"]["firing"] == 1


def test_losses_while_it_fires_belong_to_it() -> None:
    job = Cluster(world=2).start()
    job.step(0)
    (first,) = job.gap(1, 3)
    again = [*job.gap(1, 2), *job.gap(0, 5)]
    job.step(1)
    job.step(2)
    (resolved,) = job.step(3)

    assert again == []
    assert resolved.id == first.id
    assert (resolved.origin.rank, resolved.origin.ranks, resolved.origin.value) == (1, (0, 1), 10.0)
    assert resolved.message == "10 records lost since step 1 on ranks 0 and 1; over at step 3"


def test_it_is_resolved_after_frames_without_a_loss() -> None:
    """`clear_steps` in a row; a loss among them begins the count again."""
    job = Cluster().start()
    job.rules(records_lost={"clear_steps": 2})
    job.gap(0, 1)
    job.step(0)
    job.gap(0, 1)
    assert job.step(1) == []
    assert states(job.step(2)) == [("records_lost", "resolved")]


def test_each_episode_is_an_alert_of_its_own() -> None:
    job = Cluster(world=2, names=("a",)).start()
    job.rules(records_lost={"clear_steps": 1})
    job.step(0)
    job.gap(1, 1)
    job.lose(1)
    job.stats(0, 1)
    job.back(1)
    job.gap(1, 1)

    alerts = [alert for alert in job.alerts if alert.rule == "records_lost"]
    assert states(alerts) == [
        *(("records_lost", state) for state in ("firing", "resolved", "firing"))
    ]
    assert alerts[0].origin.step == alerts[2].origin.step == 1
    assert alerts[0].id == alerts[1].id != alerts[2].id


def test_the_rule_can_be_switched_off() -> None:
    """The loss is counted all the same."""
    job = Cluster().start()
    job.rules(records_lost={"enabled": False})

    assert job.gap(0, 3) == []
    assert job.health()["records"]["lost"] == 3


def test_it_fires_at_once_or_not_at_all() -> None:
    """A loss is no frame: to wait for several would mean nothing."""
    with pytest.raises(ValidationError, match="for_steps"):
        Rules.model_validate({"records_lost": {"for_steps": 2}})
