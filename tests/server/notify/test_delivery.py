"""A real aggregator that tells real webhooks: right ones, wrong ones, slow ones, gone ones."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.notify.conftest import AT_ONCE, RULES, write_config
from tests.support.aggregator import Aggregator
from tests.support.peer import Peer
from tests.support.ports import ReservedPort
from tests.support.receiver import SECRET, Receive
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

Notify = Callable[..., Aggregator]

DOUBT = "This may have been sent before"


def goes_wrong(peer: Peer, step: int) -> None:
    """Send a NaN, and then a good step, so that the next one is an alert of its own."""
    peer.steps(step, float("nan"), 1.0)


def told(step: int) -> str:
    """Return what is said of a NaN at a step."""
    return f"NaN gradient since step {step} on rank 0: a"


def status(service: Aggregator, name: str) -> dict[str, Any]:
    items = {notifier["name"]: notifier for notifier in service.json("/notifiers")}
    found: dict[str, Any] = items[name]
    return found


def delivered(service: Aggregator, name: str, count: int) -> None:
    """Wait until so many messages were delivered since the start, and noted."""
    wait_until(
        lambda: status(service, name)["messages"].get("delivered", 0) >= count,
        f"{count} messages to {name}",
    )


def test_whom_an_alert_is_for_is_told_and_nobody_else(notify: Notify, receive: Receive) -> None:
    everything, one_rule, other_run = receive(), receive(), receive()
    service = notify(
        everything=everything.url,
        one_rule=f'url = "{one_rule.url}"\nrules = ["vanishing"]\n{AT_ONCE}',
        other_run=f'url = "{other_run.url}"\nruns = ["bert*"]\nresolved = false\n{RULES}{AT_ONCE}',
    )
    silence = {"run": "quiet", "for_s": 600, "by": "ada"}
    httpx.post(f"{service.url}/silences", json=silence, trust_env=False).raise_for_status()
    goes_wrong(service.peer(run="quiet").attach(), 5)
    for run, step in (("gpt", 2), ("bert-2", 3)):
        peer = service.peer(run=run).attach()
        peer.steps(step, float("nan"))
        everything.has(f"[critical] {run}: nonfinite at step {step}, a")
        peer.steps(step + 1, 1.0)
        everything.has(f"[resolved] {run}: nonfinite at step {step}, a")
    other_run.has("[critical] bert-2: nonfinite at step 3, a")
    delivered(service, "everything", 4)

    assert len(everything.messages) == 4
    alert = wait_until(lambda: service.json("/runs/gpt/alerts"), "it is published")[0]["id"]
    assert f"{service.url}/?run=gpt&alert={alert}\n" in everything.text
    assert len(other_run.messages) == 1
    assert not one_rule.messages
    read = {status(service, name)["cursor"] for name in ("everything", "one_rule", "other_run")}
    assert read == {service.json("/healthz")["cursor"]}
    shown = service.get("/metrics").text
    assert 'gradwatch_notifications_total{result="delivered",target="everything"} 4.0' in shown
    assert 'gradwatch_notifications_pending{target="one_rule"} 0.0' in shown
    assert 'last_success_age_seconds{target="other_run"}' in shown
    assert 'last_success_age_seconds{target="one_rule"}' not in shown


def test_a_target_that_hangs_delays_no_other_and_one_that_is_new_begins_now(
    notify: Notify, receive: Receive, tmp_path: Path
) -> None:
    hanging, working, port = receive(), receive(), ReservedPort()
    hanging.hang()
    service = notify(hanging=hanging.url, working=working.url)
    peer = service.peer().attach()
    goes_wrong(peer, 1)
    hanging.asked(1)
    for step in (3, 5):
        goes_wrong(peer, step)
        working.has(told(step))
    assert status(service, "hanging")["pending"] >= 1
    assert service.stop() == 0
    hanging.go_on()
    later = f"json://127.0.0.1:{port.number}/{SECRET}"
    write_config(tmp_path, hanging=hanging.url, working=working.url, later=later)
    service.start()
    hanging.has(DOUBT)
    hanging.has(told(5))
    assert told(3) in hanging.text
    assert DOUBT not in working.text

    goes_wrong(service.peer(run="bert").attach(), 7)
    working.has(told(7))
    wait_until(lambda: status(service, "later")["messages"].get("failed"), "nobody listens")
    port.close()
    receiver = receive(port.number)
    receiver.has(told(7))
    assert told(5) not in receiver.text


def test_a_receiver_that_refuses_loses_that_message_and_one_in_trouble_none(
    notify: Notify, receive: Receive
) -> None:
    """A 404 does not become right by asking again, a 503 does. Either is told once.

    Both said that they did not take it: nobody has to wonder whether it comes twice.
    """
    refusing, troubled = receive(), receive()
    refusing.status, troubled.status = 404, 503
    service = notify(refusing=refusing.url, troubled=troubled.url)
    peer = service.peer().attach()
    peer.steps(1, float("nan"))
    wait_until(lambda: status(service, "refusing")["messages"].get("given_up"), "it is given up")
    assert "404" in status(service, "refusing")["error"]
    troubled.asked(2)
    refusing.status = troubled.status = 200
    peer.steps(2, 1.0, float("nan"))
    for receiver, name in ((refusing, "refusing"), (troubled, "troubled")):
        receiver.has(told(3))
        delivered(service, name, 1)
        assert (told(1) in receiver.text) == (name == "troubled")
        assert DOUBT not in receiver.text
        assert status(service, name)["error"] is None
        assert service.errors.count(f"notifications to {name} fail (told once)") == 1
        assert f"notifications to {name} are delivered again" in service.errors


def test_what_a_killed_aggregator_had_not_told_is_told_by_the_next(
    notify: Notify, receive: Receive
) -> None:
    receiver = receive()
    service = notify(oncall=receiver.url)
    peer = service.peer().attach()
    goes_wrong(peer, 1)
    receiver.has(f"{told(1)}; over")
    wait_until(lambda: not status(service, "oncall")["pending"], "that is noted")
    taken = len(receiver.messages)
    receiver.status = 503
    goes_wrong(peer, 3)
    service.stop(signal.SIGKILL)

    receiver.status = 200
    service.start()
    receiver.has(told(3))
    wait_until(lambda: not status(service, "oncall")["pending"], "all is told")
    assert told(1) not in "".join(message["message"] for message in receiver.messages[taken:])

    receiver.hang()
    asked = receiver.num_asked
    goes_wrong(service.peer(run="bert").attach(), 5)
    receiver.asked(asked + 1)
    service.stop(signal.SIGKILL)
    receiver.go_on()
    service.start()

    def is_told_again() -> bool:
        return any(
            told(5) in message["message"] and DOUBT in message["message"]
            for message in receiver.messages
        )

    wait_until(is_told_again, "what may have arrived is told again")
    assert "Traceback" not in service.errors


def test_no_answer_and_no_log_line_has_a_secret(notify: Notify, receive: Receive) -> None:
    right, wrong = receive(), receive()
    wrong.status = 403
    port = ReservedPort()
    service = notify(
        right=right.url,
        wrong=wrong.url,
        gone=f"json://ada:{SECRET}@127.0.0.1:{port.number}/{SECRET}",
        nobody=f'type = "alertmanager"\nurl = "http://ada:{SECRET}@127.0.0.1:{port.number}"\n',
        refusing=f'type = "alertmanager"\nurl = "http://ada:{SECRET}@127.0.0.1:{wrong.port}"\n',
    )
    goes_wrong(service.peer().attach(), 1)
    right.has(told(1))
    for name in ("wrong", "gone", "nobody", "refusing"):
        wait_until(lambda name=name: status(service, name)["error"], f"{name} fails")  # type: ignore[misc]
    answers = [
        service.get(path).text
        for path in ("/notifiers", "/metrics", "/healthz", "/readyz", "/rules", "/openapi.json")
    ]
    assert service.stop() == 0
    port.close()

    assert service.errors.count("fail (told once)") == 4
    assert service.errors.count("JSON") == 2  # nothing that apprise logs by itself
    assert "HTTP Request" not in service.errors  # nor httpx
    for text in (*answers, service.errors):
        assert SECRET not in text
    assert SECRET.encode() not in b"".join(
        file.read_bytes() for file in service.directory.iterdir() if file.is_file()
    )
