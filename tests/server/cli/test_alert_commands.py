"""The commands about alerts, against a real aggregator: list, acknowledge, silence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwatch_server.cli.app import app
from tests.support.aggregator import Aggregator
from tests.support.peer import NewPeer
from tests.support.waiting import wait_until

NAN = math.nan


@pytest.fixture
def gradwatch(service: Aggregator, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("GRADWATCH_URL", service.url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.fixture
def fired(service: Aggregator, peers: NewPeer, request: pytest.FixtureRequest) -> Any:
    """The first event of a run of the test's own, and the peer that sent it."""
    run = request.node.name.replace("[", "-").replace("]", "")[:60]
    peer = peers(service.ingest, run=run).attach(["a", "b"])
    peer.stats(0, [NAN, 1.0], loss=1.0)
    peer.acked()
    (event,) = wait_until(lambda: service.json("/alerts", params={"run": run}))
    return event, peer


def test_alerts_are_listed_as_they_stand(gradwatch: Callable[..., Any], fired: Any) -> None:
    event, peer = fired
    assert event["id"] in gradwatch("alerts", event["run"], "--state", "firing").stdout
    for step in (1, 2, 3):
        peer.stats(step, [1.0, 1.0])
    peer.acked()

    def listed() -> Any:
        lines = gradwatch("alerts", event["run"], "--json").stdout.splitlines()
        (alert,) = map(json.loads, lines)
        return alert if alert["state"] == "resolved" else None

    alert = wait_until(listed)
    assert alert["fired_at"] == event["updated_at"] <= alert["updated_at"]
    table = gradwatch("alerts", event["run"]).stdout
    assert f"fired {event['updated_at'][:19]}Z, last change" in table
    assert "nonfinite: NaN in the gradient of a at step 0 on rank 0, over at step 3" in table
    assert gradwatch("alerts", event["run"], "--state", "firing").stdout == "no alerts\n"


def test_an_id_is_whole_on_a_narrow_screen(
    gradwatch: Callable[..., Any], fired: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For it is what `gradwatch ack` is given."""
    event, _ = fired
    monkeypatch.setenv("COLUMNS", "40")
    first, second = gradwatch("alerts", event["run"]).stdout.splitlines()

    assert first.split()[:2] == [event["id"], f"{event['run']}/1"]
    assert second.strip() == f"nonfinite: {event['message']}"


def test_an_alert_is_acknowledged(gradwatch: Callable[..., Any], fired: Any) -> None:
    event, _ = fired
    done = gradwatch("ack", event["id"], "--by", "ada", "--comment", "looking")

    assert (done.exit_code, done.stdout.split(" since ")[0]) == (
        0,
        f"{event['id']} is acknowledged by ada",
    )
    assert "firing, acknowledged" in gradwatch("alerts", event["run"]).stdout
    gone = gradwatch("ack", "0" * 16)
    assert (gone.exit_code, gone.stderr) == (
        1,
        f"gradwatch: no alert '{'0' * 16}' is in memory\n",
    )


def test_silences_are_made_listed_and_ended(gradwatch: Callable[..., Any]) -> None:
    """A pattern that fits nothing is warned of."""
    made = gradwatch("silence", "--run", "no-such", "--for", "2h", "--by", "ada", "--json")
    own = json.loads(made.stdout)

    assert "warning: run: no run fits 'no-such' now" in made.stderr
    assert f"{own['id']} run no-such, rule *, layers *, until" in gradwatch("silence").stdout
    assert gradwatch("silence", "--end", own["id"]).exit_code == 0
    assert gradwatch("silence").stdout == "no silences\n"
    assert gradwatch("silence", "--end", own["id"]).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--run", "x", "--for", "soon"), "--for: a number with s, m, h or d"),
        (("--run", "x", "--for", "400d"), "for_s"),
        (("--run", "x", "--end", "y"), "--end is for a silence that is there"),
        (("--run", "*"), "this would silence everything"),
    ],
)
def test_a_silence_that_makes_no_sense_is_one_line(
    gradwatch: Callable[..., Any], arguments: tuple[str, ...], says: str
) -> None:
    done = gradwatch("silence", *arguments)

    assert done.exit_code == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
