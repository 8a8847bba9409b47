"""Debian's Alertmanager, told by a real aggregator."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gradwatch_server.notify.notification import Notification
from gradwatch_server.notify.notifiers.alertmanager import (
    HEARD_S,
    MAX_LABEL,
    RESEND_S,
    TEST_ALERT,
    VALID_S,
    AlertmanagerNotifier,
)
from gradwatch_server.notify.notifiers.base import DeliveryError
from gradwatch_server.notify.plan import NotificationBatch, NotificationQueue
from gradwatch_server.notify.policy import Policy
from gradwatch_server.storage.deliveries import DeliveryState
from gradwatch_server.storage.rows import AlertEvent
from tests.server.notify.alerts import event
from tests.support.aggregator import Aggregator
from tests.support.ports import ReservedPort
from tests.support.programs import program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NOTHING = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


class Alertmanager:
    """A process of it, on a port of its own."""

    def __init__(self, folder: Path, command: str) -> None:
        config = folder / "alertmanager.yml"
        config.write_text(NOTHING)
        self.port = ReservedPort()
        self.url = f"http://127.0.0.1:{self.port.number}"
        self.port.close()  # its listener allows no address reuse
        self._log = (folder / "alertmanager.log").open("w")
        self.process = subprocess.Popen(
            [
                command,
                f"--config.file={config}",
                f"--storage.path={folder / 'storage'}",
                f"--web.listen-address=127.0.0.1:{self.port.number}",
                "--cluster.listen-address=",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        wait_until(self._answers, "Alertmanager answers")

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", trust_env=False).is_success
        except httpx.TransportError:
            assert self.process.poll() is None
            return False

    def alerts(self, **labels: str) -> list[dict[str, Any]]:
        """Return the alerts with these labels; it shows no more what is over."""
        answer = httpx.get(f"{self.url}/api/v2/alerts", trust_env=False).raise_for_status()
        return [own for own in answer.json() if labels.items() <= own["labels"].items()]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    command = program("prometheus-alertmanager", "prometheus-alertmanager")
    made = Alertmanager(tmp_path_factory.mktemp("alertmanager"), command)
    yield made
    made.close()


def send(url: str, *events: AlertEvent, now_s: float, is_resend: bool = False) -> None:
    """Send what a target would be told of these events."""
    plan = NotificationQueue(AlertmanagerNotifier.schedule(Policy()))
    stored = {event.cursor: event.alert for event in events}
    for each in events:
        plan.accept(each, now_s)
    batch = plan.due(now_s)
    if is_resend:
        assert batch is not None
        plan.settled(batch, now_s)
        batch = plan.due(now_s + RESEND_S)
    assert batch is not None
    assert batch.is_resend == is_resend
    notice = Notification(batch, lambda own: stored.get(own.cursor), "http://gw:8420", now_s)
    AlertmanagerNotifier(url).send(notice)


def test_an_alert_fires_there_and_is_over_when_it_is_over_here(
    alertmanager: Alertmanager, notify: Callable[..., Aggregator]
) -> None:
    service = notify(am=f'type = "alertmanager"\nurl = "{alertmanager.url}"\n')
    peer = service.peer(run="live").attach()
    peer.steps(3, 1.0, float("nan"))
    (alert,) = wait_until(lambda: alertmanager.alerts(run="live", alertname="nonfinite"))
    own = wait_until(lambda: service.json("/runs/live/alerts"), "it is published")[0]

    assert alert["labels"] == {
        "alertname": "nonfinite",
        "run": "live",
        "attempt": "1",
        "group": "all",
        "severity": "critical",
        "gradwatch_id": own["id"],
    }
    assert alert["annotations"]["description"] == own["message"]
    assert alert["annotations"]["layer"] == "a"
    assert alert["annotations"]["step"] == "4"
    assert alert["generatorURL"] == f"{service.url}/?run=live&alert={own['id']}"
    peer.steps(5, 1.0)
    wait_until(lambda: service.json("/runs/live/alerts")[0]["state"] == "resolved", "it is over")
    assert alertmanager.alerts(run="live", alertname="nonfinite")  # for a minute
    (status,) = service.json("/notifiers")
    assert status["pending"] == 1


def test_an_alert_that_ended_before_it_was_sent_fires_for_a_minute(
    alertmanager: Alertmanager,
) -> None:
    """Alertmanager was away, or the aggregator."""
    ended = event(2, "short", run="short", state="resolved")
    send(alertmanager.url, event(1, "short", run="short"), ended, now_s=now_s())

    (alert,) = alertmanager.alerts(run="short")
    ends_in_s = datetime.fromisoformat(alert["endsAt"]).timestamp() - now_s()
    assert HEARD_S / 2 < ends_in_s <= HEARD_S
    assert alert["labels"]["severity"] == "critical"


def test_what_was_told_and_is_over_is_over_there(alertmanager: Alertmanager) -> None:
    began = event(1, "told", run="told")
    send(alertmanager.url, began, now_s=now_s())
    entry = DeliveryState("told", "", "told", "nonfinite", "critical", "resolved", 2, is_told=True)
    facts = event(2, "told", run="told", state="resolved").alert
    AlertmanagerNotifier(alertmanager.url).send(
        Notification(NotificationBatch("", (entry,)), lambda _: facts, None, now_s())
    )

    wait_until(lambda: not alertmanager.alerts(run="told"), "it is over")


def now_s() -> float:
    return time.time()


def test_what_fires_on_is_sent_again_before_it_is_taken_for_over(
    alertmanager: Alertmanager,
) -> None:
    first = event(1, "again", run="again")
    send(alertmanager.url, first, now_s=now_s())
    (before,) = alertmanager.alerts(run="again")
    send(alertmanager.url, first, now_s=now_s() + RESEND_S, is_resend=True)
    (after,) = alertmanager.alerts(run="again")

    assert after["fingerprint"] == before["fingerprint"]
    assert after["endsAt"] > before["endsAt"]
    assert VALID_S > 3 * RESEND_S


def test_with_another_severity_the_one_before_is_over(alertmanager: Alertmanager) -> None:
    send(alertmanager.url, event(1, "rises", run="rises", severity="warning"), now_s=now_s())
    assert len(alertmanager.alerts(run="rises", severity="warning")) == 1
    risen = event(2, "rises", run="rises", raised_step=9, news=["severity"])
    send(alertmanager.url, risen, now_s=now_s())

    wait_until(lambda: len(alertmanager.alerts(run="rises")) == 1, "the one before is over")
    (alert,) = alertmanager.alerts(run="rises")
    assert alert["labels"]["severity"] == "critical"


def test_hundreds_at_once_arrive_all_and_long_names_are_cut(alertmanager: Alertmanager) -> None:
    events = [event(n, f"many{n}", run="many", group="g" * 5_000) for n in range(1, 301)]
    send(alertmanager.url, *events, now_s=now_s())

    alerts = alertmanager.alerts(run="many")
    assert len(alerts) == 300
    assert {len(alert["labels"]["group"]) for alert in alerts} == {MAX_LABEL}


def test_a_test_alert_says_that_it_is_one(alertmanager: Alertmanager) -> None:
    AlertmanagerNotifier(alertmanager.url + "/").test("http://gw:8420")

    (alert,) = alertmanager.alerts(alertname=TEST_ALERT)
    assert "test" in alert["annotations"]["summary"]


def test_what_it_refuses_is_not_tried_again(alertmanager: Alertmanager) -> None:
    with pytest.raises(DeliveryError, match="it answers 404") as caught:
        AlertmanagerNotifier(alertmanager.url + "/elsewhere").test(None)
    assert caught.value.is_final

    with pytest.raises(DeliveryError) as caught:
        AlertmanagerNotifier("http://127.0.0.1:9").test(None)
    assert caught.value.is_refused
    assert not caught.value.is_final
