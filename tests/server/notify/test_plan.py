"""Pending notifications of a target: a pure function, given events and times."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_server.notify.plan import NotificationBatch, NotificationQueue
from gradwatch_server.notify.policy import Policy
from gradwatch_server.storage.deliveries import DeliveryProgress, DeliveryState, GroupTimes
from tests.server.notify.alerts import event

HOUR_S = 3_600.0
DAY_S = 86_400.0
NOON_S = 20_000 * DAY_S + 12 * HOUR_S
"""Some day, 12:00 UTC."""

AT_ONCE: dict[str, Any] = {"group_wait_s": 0.0, "group_interval_s": 0.0}


def due(plan: NotificationQueue, now_s: float, **settings: Any) -> NotificationBatch:
    batch = plan.due(now_s, **settings)
    assert batch is not None, plan.entries
    return batch


def ids(batch: NotificationBatch) -> list[str]:
    return [entry.alert_id for entry in batch.entries]


def tell(plan: NotificationQueue, now_s: float) -> list[str]:
    """Deliver what is due, and return whom it was about."""
    batch = due(plan, now_s)
    plan.settled(batch, now_s)
    return ids(batch)


def test_alerts_of_a_run_that_come_together_are_one_message() -> None:
    plan = NotificationQueue(Policy(group_wait_s=10.0))
    plan.accept(event(1, "a"), NOON_S)
    plan.accept(event(2, "b"), NOON_S + 9.0)
    plan.accept(event(3, "c", run="other"), NOON_S + 9.0)

    assert plan.due(NOON_S + 9.9) is None
    assert plan.next_s(NOON_S) == NOON_S + 10.0
    assert tell(plan, NOON_S + 10.0) == ["a", "b"]
    assert plan.due(NOON_S + 18.9) is None
    assert tell(plan, NOON_S + 19.0) == ["c"]


def test_a_storm_is_few_messages() -> None:
    """A thousand alerts in one run within an hour: one a minute at the most."""
    plan = NotificationQueue(Policy(group_wait_s=10.0, group_interval_s=60.0))
    told: list[str] = []
    for number in range(1_000):
        now_s = NOON_S + number * 0.1
        plan.accept(event(number + 1, f"a{number}"), now_s)
        if (batch := plan.due(now_s)) is not None:
            plan.settled(batch, now_s)
            told.append(batch.group)
    rest = due(plan, NOON_S + 200.0)

    assert len(told) == 2
    assert len(rest.entries) > 200


@pytest.mark.parametrize(
    ("group_by", "count"), [((), 1), (("run",), 2), (("run", "rule"), 3), (("rule",), 2)]
)
def test_what_is_grouped_is_set(group_by: tuple[str, ...], count: int) -> None:
    plan = NotificationQueue(Policy(group_by=group_by, **AT_ONCE))
    plan.accept(event(1, "a"), NOON_S)
    plan.accept(event(2, "b", rule="vanishing"), NOON_S)
    plan.accept(event(3, "c", run="other"), NOON_S)
    told = 0
    while (batch := plan.due(NOON_S)) is not None:
        plan.settled(batch, NOON_S)
        told += 1

    assert told == count


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"severity": "info"}, False),
        ({"rule": "vanishing"}, False),
        ({"run": "scratch-1"}, False),
        ({"silenced": True}, False),
    ],
)
def test_only_what_is_wanted_is_told(changes: dict[str, Any], is_told: bool) -> None:
    plan = NotificationQueue(Policy(rules=("non*",), runs=("!scratch-*",), **AT_ONCE))
    plan.accept(event(1, **changes), NOON_S)

    assert (plan.due(NOON_S) is not None) == is_told


def test_that_it_is_over_is_told_to_whom_it_was_told() -> None:
    """Silenced by then or not; to nobody else."""
    plan = NotificationQueue(Policy(**AT_ONCE))
    plan.accept(event(1, "a"), NOON_S)
    plan.accept(event(2, "b", severity="info"), NOON_S)
    assert tell(plan, NOON_S) == ["a"]
    plan.accept(event(3, "a", "resolved", silenced=True), NOON_S + 1)
    plan.accept(event(4, "b", "resolved"), NOON_S + 1)

    assert tell(plan, NOON_S + 1) == ["a"]
    assert plan.entries == ()


def test_nobody_who_does_not_want_that_is_told_that_it_is_over() -> None:
    plan = NotificationQueue(Policy(resolved=False, **AT_ONCE))
    plan.accept(event(1), NOON_S)
    tell(plan, NOON_S)
    plan.accept(event(2, state="resolved"), NOON_S + 1)

    assert plan.due(NOON_S + 1) is None
    assert plan.entries == ()


def test_what_began_and_ended_while_it_waited_is_told_once() -> None:
    plan = NotificationQueue(Policy(group_wait_s=10.0))
    plan.accept(event(1), NOON_S)
    plan.accept(event(2, state="resolved"), NOON_S + 1)
    batch = due(plan, NOON_S + 10.0)

    assert [(entry.state, entry.is_told) for entry in batch.entries] == [("resolved", False)]
    plan.settled(batch, NOON_S + 10.0)
    assert plan.next_s(NOON_S + 10.0) is None


def test_a_receiver_may_hear_of_an_alert_before_its_end() -> None:
    """And of others meanwhile; a clock that is set back delays nothing."""
    plan = NotificationQueue(Policy(**AT_ONCE, min_firing_s=60.0))
    plan.accept(event(1, "a"), 100.0)
    assert tell(plan, 100.0) == ["a"]
    plan.accept(event(2, "a", state="resolved"), 101.0)
    plan.accept(event(3, "b"), 102.0)
    assert tell(plan, 102.0) == ["b"]
    assert plan.due(159.0) is None
    assert plan.next_s(159.0) == 160.0
    assert plan.due(50.0) is not None
    assert tell(plan, 160.0) == ["a"]
    assert plan.next_s(160.0) is None


def test_news_are_told_where_it_became_worse() -> None:
    plan = NotificationQueue(Policy(**AT_ONCE))
    plan.accept(event(1, severity="warning"), NOON_S)
    tell(plan, NOON_S)
    plan.accept(event(2, severity="warning", news=["layers"]), NOON_S + 1)
    assert plan.due(NOON_S + 1) is None
    plan.accept(
        event(3, severity="warning", news=["acknowledged"], acknowledged={"by": "ada"}), NOON_S + 2
    )
    assert plan.due(NOON_S + 2) is None
    plan.accept(
        event(4, severity="critical", news=["severity"], acknowledged={"by": "ada"}), NOON_S + 3
    )

    assert [entry.severity for entry in due(plan, NOON_S + 3).entries] == ["critical"]


def test_a_lost_rank_is_told_after_what_others_raised_because_of_it() -> None:
    plan = NotificationQueue(Policy(**AT_ONCE))
    plan.accept(event(1, severity="critical"), NOON_S)
    tell(plan, NOON_S)
    plan.accept(event(2, severity="critical", news=["kind"]), NOON_S + 60)

    assert len(due(plan, NOON_S + 60).entries) == 1


def test_what_rises_to_a_severity_that_is_wanted_is_told() -> None:
    plan = NotificationQueue(Policy(severities=frozenset({"critical"}), **AT_ONCE))
    plan.accept(event(1, severity="warning"), NOON_S)
    assert plan.due(NOON_S) is None
    plan.accept(event(2, severity="critical", news=["severity"]), NOON_S)

    assert tell(plan, NOON_S) == ["a1"]


def test_whoever_outlives_its_silence_is_told_then() -> None:
    plan = NotificationQueue(Policy(**AT_ONCE))
    plan.accept(event(1, silenced=True), NOON_S)
    plan.accept(event(2, news=["silence_ended"]), NOON_S + 1)

    assert tell(plan, NOON_S + 1) == ["a1"]


@pytest.mark.parametrize("change", [{"silenced": True}, {"acknowledged": {"by": "ada"}}])
def test_what_somebody_knows_of_while_it_waits_is_not_told(change: dict[str, Any]) -> None:
    plan = NotificationQueue(Policy(group_wait_s=10.0))
    plan.accept(event(1), NOON_S)
    plan.accept(event(2, news=["layers"], **change), NOON_S + 1)

    assert plan.due(NOON_S + 10.0) is None
    assert plan.entries == ()


def test_what_fires_on_is_sent_again_to_who_would_take_it_for_over() -> None:
    plan = NotificationQueue(Policy(resend_s=120.0, **AT_ONCE))
    never = NotificationQueue(Policy(**AT_ONCE))
    for own in (plan, never):
        own.accept(event(1, "a"), NOON_S)
        own.accept(event(2, "b", run="other"), NOON_S)
        tell(own, NOON_S)
        tell(own, NOON_S)
    assert plan.next_s(NOON_S) == NOON_S + 120.0
    assert plan.due(NOON_S + 119.0) is None
    batch = due(plan, NOON_S + 120.0)
    assert batch.is_resend
    assert ids(batch) == ["a", "b"]
    plan.settled(batch, NOON_S + 120.0)
    plan.accept(event(3, "a", news=["acknowledged"], acknowledged={"by": "ada"}), NOON_S + 200.0)
    plan.accept(event(4, "b", "resolved", run="other"), NOON_S + 200.0)
    assert tell(plan, NOON_S + 200.0) == ["b"]
    assert tell(plan, NOON_S + 240.0) == ["a"]

    again = NotificationQueue(
        Policy(resend_s=120.0, **AT_ONCE), plan.entries
    )  # after a restart: at once
    assert due(again, NOON_S + 241.0).is_resend
    assert never.next_s(NOON_S) is None


def test_a_message_of_which_nobody_knows_whether_it_arrived_goes_first_and_says_so() -> None:
    plan = NotificationQueue(Policy(**AT_ONCE))
    plan.accept(event(1, "a", run="first"), NOON_S)
    plan.accept(event(2, "b", run="second"), NOON_S)
    batch = due(plan, NOON_S, doubtful="second")

    assert ids(batch) == ["b"]
    assert batch.is_again
    assert not due(plan, NOON_S).is_again


def test_what_is_kept_gives_the_same_plan_again() -> None:
    policy = Policy(group_wait_s=10.0)
    plan = NotificationQueue(policy)
    entries: dict[str, DeliveryState] = {}
    groups: dict[str, GroupTimes] = {}
    plan.accept(event(1, "a"), NOON_S)
    plan.keep_changes(plan.changes(DeliveryProgress(1), NOON_S))
    plan.accept(event(2, "b"), NOON_S)
    for is_sent in (False, True):
        if is_sent:
            tell(plan, NOON_S + 10)
        change = plan.changes(DeliveryProgress(2), NOON_S + 10)
        entries |= {entry.alert_id: entry for entry in change.entries}
        groups |= change.groups
        again = NotificationQueue(
            policy, sorted(entries.values(), key=lambda own: own.cursor), groups
        )
        assert again.entries == plan.entries
        assert again.due(NOON_S + 10) == plan.due(NOON_S + 10)
        assert again.next_s(NOON_S + 10) == plan.next_s(NOON_S + 10)
    assert not plan.changes(DeliveryProgress(2), NOON_S + 10).entries

    plan.accept(event(3, "a", "resolved"), NOON_S + 20)
    plan.accept(event(4, "b", "resolved"), NOON_S + 20)
    tell(plan, NOON_S + 80)
    plan.keep_changes(plan.changes(DeliveryProgress(4), NOON_S + 80))
    last = plan.changes(DeliveryProgress(4), NOON_S + 80)
    assert sorted(last.forgotten) == ["a", "b"]
    assert not last.ended  # or an alert that comes and goes would be told each time
    assert plan.changes(DeliveryProgress(4), NOON_S + 140).ended == ["gpt"]


def test_a_clock_that_was_set_back_delays_nothing_for_long() -> None:
    plan = NotificationQueue(Policy(group_wait_s=10.0))
    plan.accept(event(1), NOON_S)
    earlier_s = NOON_S - DAY_S

    assert plan.next_s(earlier_s) == earlier_s + 10.0


def test_it_remembers_no_more_than_it_may() -> None:
    plan = NotificationQueue(Policy(**AT_ONCE), max_entries=2)
    plan.accept(event(1, "a"), NOON_S)
    tell(plan, NOON_S)
    plan.accept(event(2, "b"), NOON_S)
    assert plan.has_room()
    assert [entry.alert_id for entry in plan.entries] == ["b"]
    plan.accept(event(3, "c"), NOON_S)

    assert not plan.has_room()
    assert plan.num_pending == 2


def test_what_is_given_up_is_told_when_it_has_news() -> None:
    """The receiver may be right again by then."""
    plan = NotificationQueue(Policy(**AT_ONCE))
    plan.accept(event(1), NOON_S)
    plan.drop(due(plan, NOON_S).entries)
    assert plan.due(NOON_S) is None
    plan.accept(event(2, news=["layers"]), NOON_S + 1)

    assert tell(plan, NOON_S + 1) == ["a1"]
