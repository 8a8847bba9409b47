"""`gradwatch ack`."""

from __future__ import annotations

from typing import Any

from tests.support.command import Command
from tests.support.peer import Peer


def test_an_alert_is_acknowledged(ask: Command, fired: tuple[dict[str, Any], Peer]) -> None:
    event, _ = fired
    done = ask("ack", event["id"], "--by", "ada", "--comment", "looking")

    assert (done.returncode, done.stdout.split(" since ")[0]) == (
        0,
        f"{event['id']} is acknowledged by ada",
    )
    assert "firing, acknowledged" in ask("alerts", event["run"]).stdout
    gone = ask("ack", "0" * 16)
    assert (gone.returncode, gone.stderr) == (1, f"gradwatch: no alert '{'0' * 16}' is in memory\n")
