"""A run has so many alert events; beyond them alerts stay as they are, and count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gradwatch_server.budgets import Budgets, LoggedBudgets
from gradwatch_server.core.alerting import alert_budget
from gradwatch_server.core.alerting.alert import Alert, ResolvedBy
from gradwatch_server.core.alerting.alert_budget import MINUTE_NS, AlertBudget
from gradwatch_server.core.entries import Acknowledged
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire.health import AlertState, Severity
from tests.server.core.test_saved_state import restored
from tests.support.core import Cluster

NAN = math.nan
SECOND = 1_000_000_000
SMALL = {"alert_events_per_min": 60}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Allow only so many events at once: `few(17)`; 16 where nothing is said."""

    def allow(at_once: int) -> None:
        monkeypatch.setattr(alert_budget, "AT_ONCE", at_once)

    allow(16)
    return allow


def told(alerts: Iterable[Alert]) -> list[str]:
    return [alert.change for alert in alerts]


def flap(job: Any, begin: int, cycles: int, bad: float = NAN) -> int:
    """Six bad steps and six good ones, so many times; return the next step."""
    for step in range(begin, begin + 12 * cycles):
        job.step(step, bad if (step - begin) % 12 < 6 else 1.0)
    return begin + 12 * cycles


def firing(job: Any) -> list[Alert]:
    return [
        alert for alert in view_run(job.state.runs[job.run]).alerts if alert.state != "resolved"
    ]


def test_all_at_once_then_one_a_second() -> None:
    budget = AlertBudget()
    budget.limits = LoggedBudgets(alert_events_per_min=60)
    now_ns = 1_763_000_000 * SECOND

    def taken(severity: Severity) -> int:
        count = 0
        while budget.may_tell(now_ns, severity):
            count += 1
        return count

    assert [taken(severity) for severity in Severity] == [150, 25, 25]
    now_ns += 10 * SECOND
    assert (taken(Severity.INFO), taken(Severity.WARNING), taken(Severity.CRITICAL)) == (0, 0, 10)
    assert not budget.may_tell(now_ns - 3600 * SECOND, Severity.CRITICAL)  # no time is gained
    now_ns += MINUTE_NS
    assert taken(Severity.INFO) == 10


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_log_without_budgets_has_no_bounds() -> None:
    job = Cluster(names=("a",)).start()
    flap(job, 0, 300)

    assert Counter(told(job.alerts)) == {"firing": 300, "resolved": 300}


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_an_alert_whose_event_waits_stays_as_it_is_and_counts() -> None:
    job = Cluster(names=("a",)).start()
    job.budgets(**SMALL)
    step = flap(job, 0, 50)

    assert told(job.alerts) == ["firing", "resolved"] * 8
    (alert,) = firing(job)
    assert (alert.state, alert.fired_step) == (AlertState.PENDING, None)
    assert alert.num_flaps == 41
    assert alert.last_step == step - 7

    job.now_ns += 2 * SECOND
    (fired,) = job.step(step, NAN)
    assert (fired.id, fired.change, fired.num_flaps) == (alert.id, "firing", 42)
    assert fired.message.endswith("; over and back 42 times")
    assert fired.to_dict()["num_flaps"] == 42
    step = flap(job, step + 1, 2)
    job.step(step)

    resolved = job.alerts[-1]
    assert (resolved.id, resolved.change) == (alert.id, "resolved")
    assert resolved.resolved_by is ResolvedBy.CLEAR
    assert len({alert.id for alert in job.alerts}) == 9


@pytest.mark.slow
def test_one_that_fires_stays_so_until_its_end_can_be_told(few: Callable[[int], None]) -> None:
    few(17)
    job = Cluster(names=("a",)).start()
    job.budgets(**SMALL)
    step = flap(job, 0, 30)

    assert told(job.alerts)[-1] == "firing"
    (alert,) = firing(job)
    assert (alert.state, alert.num_flaps) == (AlertState.FIRING, 21)
    assert job.health()["alerts"]["firing"] == 1
    assert job.step(step) == []

    job.now_ns += 2 * SECOND
    (resolved,) = job.step(step + 1)
    assert (resolved.change, resolved.resolved_step) == ("resolved", step + 1)
    assert resolved.message.endswith(f"over and back 21 times; over at step {step + 1}")
    assert firing(job) == []


@pytest.mark.usefixtures("few")
def test_the_first_critical_one_of_a_rule_is_told_in_any_case() -> None:
    job = Cluster(names=("a", "b"), groups={"g": (0,), "h": (1,)}).start()
    job.rules(vanishing={"enabled": False}, dead_layer={"enabled": False})
    job.budgets(**SMALL)
    # Once in a group, then as often as it likes in the other one.
    flap(job, 0, 12)
    assert Counter(told(job.alerts)) == {"firing": 8, "resolved": 8}
    assert {own.group for own in firing(job)} == {"g", "h"}

    (failed,) = job.bye(0, "exception")

    assert (failed.rule, failed.severity, failed.change) == ("liveness", "critical", "firing")


@pytest.mark.usefixtures("few")
def test_what_matters_less_leaves_room_for_what_matters_more() -> None:
    """An info that flaps cannot keep a warning from being told."""
    job = Cluster(names=("a", "b")).start()
    job.rules(
        nonfinite={"severity": "info", "layers": ["a"]}, exploding={"layers": ["b"], "for_steps": 1}
    )
    job.budgets(**SMALL)
    for step in range(240):
        job.step(step, [NAN if step % 12 < 6 else 1.0, 1.0])
    assert told(job.alerts) == ["firing", "resolved"] * 6

    (fired,) = job.step(240, [1.0, 1e9])

    assert (fired.rule, fired.severity) == ("exploding", "warning")


@pytest.mark.usefixtures("few")
def test_other_runs_have_budgets_of_their_own() -> None:
    one = Cluster(names=("a",)).start()
    one.budgets(**SMALL)
    flap(one, 0, 20)
    other = Cluster(names=("a",), run="other", state=one.state)
    other.now_ns = one.now_ns
    other.start()
    flap(other, 0, 3)
    assert told(other.alerts) == ["firing", "resolved"] * 3

    again = Cluster(names=("a",), state=one.state)
    again.now_ns = one.now_ns
    again.start(job="another")
    flap(again, 0, 3)
    # The first critical one of this attempt, and no more.
    assert told(again.alerts) == ["firing"]


@pytest.mark.slow
def test_people_are_answered(few: Callable[[int], None]) -> None:
    few(17)
    job = Cluster(names=("a",)).start()
    job.budgets(**SMALL)
    step = flap(job, 0, 30)
    (alert,) = firing(job)

    (known,) = job.put(Acknowledged("gpt", 1, alert.id, "ada", "seen"))
    assert known.change == "firing:1"
    job.rules(nonfinite={"enabled": False})
    (over,) = job.step(step)
    assert (over.change, over.resolved_by) == ("resolved", ResolvedBy.RULE_OFF)


@pytest.mark.usefixtures("few")
def test_news_wait_and_come_together() -> None:
    names = [f"l{n}" for n in range(8)]
    job = Cluster(names=names).start()
    job.budgets(alert_events_per_min=1)
    step = flap(job, 0, 7)
    job.step(step, [NAN] + [1.0] * 7)
    for bad in range(2, 9):
        job.step(step + bad, [NAN] * bad + [1.0] * (8 - bad))
    assert told(job.alerts)[14:] == ["firing", "firing:1"]

    job.now_ns += 2 * MINUTE_NS
    (news,) = job.step(step + 20, [NAN] * 8)

    assert (news.change, news.num_layers, news.update.num_layers) == ("firing:2", 8, 6)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("place", [50, 205, 336, 471])
@pytest.mark.usefixtures("few")
def test_it_goes_on_over_a_restart(place: int) -> None:
    names, groups = ("a", "b"), {"g": (0,), "h": (1,)}
    alerts = []
    for at in (None, place):
        job = Cluster(names=names, groups=groups)
        job.sessions.clear()
        job.start()
        job.budgets(**SMALL)
        for step in range(600):
            if step == at:
                job.state = restored(job.state)
            job.now_ns += 30_000_000
            a, b = (NAN if step % own < own / 2 else 1.0 for own in (12, 14))
            job.step(step, [a, b])
        alerts.append([repr(own.to_dict()) for own in (*job.alerts, *firing(job))])

    assert alerts[0] == alerts[1]
    assert 20 < len(alerts[0]) < 60


@pytest.mark.slow
def test_how_many_wait_is_counted_once_each(few: Callable[[int], None]) -> None:
    few(17)
    job = Cluster(names=("a",)).start()
    job.budgets(**SMALL)
    flap(job, 0, 30)
    budget = job.state.runs["gpt"].alert_budget

    assert budget.take_delayed() == 1
    assert budget.take_delayed() == 0


def test_a_run_with_a_fault_in_every_group_is_told_of_in_full() -> None:
    names = [f"h.{n}.weight" for n in range(64)]
    job = Cluster(names=names, groups={f"g{n}": (n,) for n in range(64)}).start()
    job.budgets(**Budgets().logged().model_dump())
    job.step(0, NAN)
    for step in range(1, 5):
        job.step(step)

    assert Counter(told(job.alerts)) == {"firing": 64, "resolved": 64}
    assert len(job.step(5, NAN)) == 64
