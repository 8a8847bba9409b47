"""`gradwatch alerts`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.command import Command
from tests.support.peer import Peer
from tests.support.waiting import wait_until


def test_alerts_are_listed_as_they_stand(ask: Command, fired: tuple[dict[str, Any], Peer]) -> None:
    event, peer = fired
    assert event["id"] in ask("alerts", event["run"], "--state", "firing").stdout
    for step in (1, 2, 3):
        peer.stats(step, [1.0, 1.0])
    peer.acked()

    def listed() -> Any:
        lines = ask("alerts", event["run"], "--json").stdout.splitlines()
        (alert,) = map(json.loads, lines)
        return alert if alert["state"] == "resolved" else None

    alert = wait_until(listed)
    assert alert["fired_at"] == event["updated_at"] <= alert["updated_at"]
    table = ask("alerts", event["run"]).stdout
    assert f"fired {event['updated_at'][:19]}Z, last change" in table
    assert "nonfinite: NaN gradient since step 0 on rank 0: a; over at step 3" in table
    assert ask("alerts", event["run"], "--state", "firing").stdout == "no alerts\n"


def test_an_id_is_whole_on_a_narrow_screen(
    ask: Command, fired: tuple[dict[str, Any], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For it is what `gradwatch ack` is given."""
    event, _ = fired
    monkeypatch.setenv("COLUMNS", "40")
    first, second = ask("alerts", event["run"]).stdout.splitlines()

    assert first.split()[:2] == [event["id"], f"{event['run']}/1"]
    assert second.strip() == f"nonfinite: {event['message']}"
