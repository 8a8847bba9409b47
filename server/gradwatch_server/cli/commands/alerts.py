"""`gradwatch alerts`: lists alerts, those that fire and those that are over."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from gradwatch_server.cli.client import past_events
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import console, plain


class Told(StrEnum):
    """States in which alerts are told."""

    FIRING = "firing"
    RESOLVED = "resolved"


def alerts(
    run: Annotated[str | None, typer.Argument(help="Only this run.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    state: Annotated[Told | None, typer.Option(help="Only those in this state.")] = None,
) -> None:
    """List alerts as they stand, the oldest first; the times are those of the aggregator."""
    found = [
        alert for alert in _as_they_stand(url, run) if state is None or alert["state"] == state
    ]
    if as_json:
        for alert in found:
            print(json.dumps(alert))
    elif found:
        console.print(_table(found))
    else:
        print("no alerts")


def _as_they_stand(url: str, run: str | None) -> list[dict[str, Any]]:
    """Return the last event of each alert that is kept, with the time of its first."""
    found: dict[str, dict[str, Any]] = {}
    for event in past_events(url, run):
        first = found.get(event["id"], event)
        fired_at = first.get("fired_at", first["updated_at"])
        found[event["id"]] = event | {"fired_at": fired_at}
    return list(found.values())


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("id", "run", "state", "severity", "fired", "last change", "what", box=None)
    for alert in found:
        notes = [
            *(["silenced"] if alert.get("silenced") else []),
            *(["acknowledged"] if alert.get("acknowledged") else []),
        ]
        table.add_row(
            plain(alert["id"]),
            plain(f"{alert['run']}/{alert['attempt']}"),
            plain(", ".join([alert["state"], *notes])),
            plain(alert["severity"]),
            plain(alert["fired_at"][:19]),
            plain(alert["updated_at"][:19]),
            plain(f"{alert['rule']}: {alert['message']}"),
        )
    return table
