"""Wording of messages."""

from __future__ import annotations

from typing import Any

from gradwatch_server.notify.message import MAX_NAMED, Message, compose
from gradwatch_server.notify.notification import AlertBody, Notification
from gradwatch_server.notify.plan import NotificationBatch, NotificationQueue
from gradwatch_server.notify.policy import Policy
from gradwatch_server.storage.deliveries import DeliveryState
from gradwatch_server.storage.rows import AlertEvent
from gradwatch_wire.health import Severity
from tests.server.notify.alerts import event


def composed(*events: AlertEvent, **changes: Any) -> Message:
    """Return the message about events that come at once."""
    plan = NotificationQueue(Policy(group_wait_s=0.0, group_interval_s=0.0, group_by=()))
    stored = {event.cursor: event.alert for event in events}
    for each in events:
        plan.accept(each, 1.0)
    batch = plan.due(1.0)
    assert batch is not None
    fields = {name: getattr(batch, name) for name in NotificationBatch.__slots__} | changes

    def read(entry: DeliveryState) -> AlertBody | None:
        return stored.get(entry.cursor)

    return compose(Notification(NotificationBatch(**fields), read, "http://gw:8420", 1.0))


def test_one_alert_says_all_there_is_to_know() -> None:
    """Rule, severity, run, step, rank, layer, value and limit, what helps, where to look."""
    origin = {"rank": 3, "num_ranks": 1, "layer": "h.0", "value": 412.5, "threshold": 100.0}
    message = composed(event(9, rule="exploding", origin=origin))

    assert message.title == "[critical] gpt: exploding at step 7, h.0"
    assert message.severity is Severity.CRITICAL
    assert message.body.splitlines() == [
        "critical exploding",
        "run gpt, step 7, rank 3, h.0, value 412.5, limit 100",
        "NaN gradient since step 7 on rank 3: h.0",
        "often behind it:",
        "- float16 overflows",
        "http://gw:8420/?run=gpt&alert=a1",
        "alert a1, event 9",
    ]


def test_of_many_the_worst_are_named_and_all_are_counted() -> None:
    events = [event(n, f"w{n}", rule="vanishing", severity="warning") for n in range(1, 995)]
    events += [event(n, f"c{n}") for n in range(995, 1_001)]
    message = composed(*events)

    assert message.title == "[critical] gpt: 1,000 alerts (994 vanishing, 6 nonfinite)"
    assert message.body.count("alert ") == MAX_NAMED
    assert message.body.startswith("critical nonfinite\n")
    assert message.body.endswith("and 990 more: 6 critical, 994 warning in all")
    assert len(message.body) < 8_000


def test_of_several_runs_the_title_counts_them() -> None:
    message = composed(event(1, "a"), event(2, "b", run="other"))

    assert message.title == "[critical] 2 runs: 2 alerts (2 nonfinite)"
    assert "run other, step 7" in message.body


def test_an_alert_that_ended_before_it_was_sent_is_sent_as_what_it_was() -> None:
    message = composed(event(1), event(2, state="resolved", resolved_step=8))

    assert message.title == "[critical] gpt: nonfinite at step 7, h.0, over since step 8"
    assert message.severity is Severity.CRITICAL
    assert message.body.startswith("critical nonfinite, over since step 8\n")
    assert "often behind it" in message.body


def test_the_end_of_what_was_told_says_so() -> None:
    entry = DeliveryState("a1", "", "gpt", "nonfinite", "critical", "resolved", 2, is_told=True)
    facts = event(2, state="resolved", resolved_step=8).alert
    message = compose(Notification(NotificationBatch("", (entry,)), lambda _: facts, None, 1.0))

    assert message.title == "[resolved] gpt: nonfinite at step 7, h.0"
    assert message.severity is None
    assert message.body.startswith("critical nonfinite, over since step 8\n")
    assert "often behind it" not in message.body


def test_a_doubtful_one_says_so() -> None:
    message = composed(event(1), is_again=True)

    assert message.body.endswith("This may have been sent before: the receipt is not known.")


def test_names_from_the_wire_call_nobody() -> None:
    layer = "h\n@everyone <!channel> @here"
    origin = {"rank": None, "num_ranks": 8, "layer": layer, "value": "Infinity", "threshold": None}
    body = composed(event(1, origin=origin)).body

    assert "@everyone" not in body
    assert "<!channel>" not in body
    assert "@here" not in body
    assert r"h\n" in body
    assert "8 ranks" in body


def test_an_alert_that_is_not_kept_any_more_is_still_named() -> None:
    """The log was trimmed, or its run deleted, while it waited."""
    plan = NotificationQueue(Policy(group_wait_s=0.0))
    plan.accept(event(1), 100.0)
    batch = plan.due(100.0)
    assert batch is not None
    message = compose(Notification(batch, lambda _: None, None, 100.0))

    assert message.title == "[critical] gpt: nonfinite"
    assert "not kept any more" in message.body
    assert "http" not in message.body
