"""`gradwatch tail`: prints alerts as they happen."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.text import Text

from gradwatch_server.cli.client import follow_alerts
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import console, moment
from gradwatch_server.core.alerting.alert import printable


def tail(
    run: Annotated[str | None, typer.Argument(help="Only this run.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    after: Annotated[
        int | None, typer.Option(min=0, help="Begin after this cursor; 0 shows everything kept.")
    ] = None,
) -> None:
    """Print alerts as they happen, across restarts of the aggregator, until interrupted."""
    try:
        for event in follow_alerts(url, run, after):
            if as_json:
                print(json.dumps(event), flush=True)
            else:
                console.print(_line(event), soft_wrap=True)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _line(event: dict[str, Any]) -> Text:
    return Text.assemble(
        printable(f"#{event['cursor']} {moment(event['updated_at'])} {event['run']} "),
        (printable(f"{event['state']} {event['severity']} {event['rule']}: "), "bold"),
        printable(event["message"]),
    )
