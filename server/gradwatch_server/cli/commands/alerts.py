"""`gradwatch alerts`: lists alerts, those that fire and those that are over."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from gradwatch_server.cli.client import past_events
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import coloured, console, moment, plain


class ListedState(StrEnum):
    """States in which alerts are told."""

    FIRING = "firing"
    RESOLVED = "resolved"


def alerts(
    run: Annotated[str | None, typer.Argument(help="Only this run.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    state: Annotated[ListedState | None, typer.Option(help="Only those in this state.")] = None,
) -> None:
    """List alerts as they stand, the oldest first; times are UTC, of the aggregator."""
    shown = [
        alert for alert in _as_they_stand(url, run) if state is None or alert["state"] == state
    ]
    if as_json:
        for alert in shown:
            print(json.dumps(alert))
    elif not shown:
        print("no alerts")
    else:
        for alert in shown:
            console.print(_lines(alert), soft_wrap=True)


def _as_they_stand(url: str, run: str | None) -> list[dict[str, Any]]:
    """Return the last event of each alert that is kept, with the time of its first."""
    newest: dict[str, dict[str, Any]] = {}
    for event in past_events(url, run):
        first = newest.get(event["id"], event)
        fired_at = first.get("fired_at", first["updated_at"])
        newest[event["id"]] = event | {"fired_at": fired_at}
    return list(newest.values())


def _lines(alert: dict[str, Any]) -> Text:
    """Return two lines: what `gradwatch ack` and a search need, whole, then what it says."""
    notes = [name for name in ("silenced", "acknowledged") if alert.get(name)]
    times = f"fired {moment(alert['fired_at'])}, last change {moment(alert['updated_at'])}"
    return Text.assemble(
        plain(f"{alert['id']}  {alert['run']}/{alert['attempt']}  "),
        plain(", ".join([alert["state"], *notes])),
        "  ",
        coloured(alert["severity"]),
        plain(f"  {times}"),
        "\n    ",
        plain(f"{alert['rule']}: {alert['message']}"),
    )
