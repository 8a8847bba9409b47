"""`gradwatch tail`: prints alerts as they happen."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.text import Text

from gradwatch_server.cli.app import FLAG
from gradwatch_server.cli.client import follow_alerts, is_known, named, past_events
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import console, moment
from gradwatch_server.core.printable import printable


def tail(
    run: Annotated[str | None, typer.Argument(help="Only this run.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    after: Annotated[
        int | None, typer.Option(min=0, help="Begin after this cursor; 0 shows everything kept.")
    ] = None,
    past: Annotated[
        bool, typer.Option("--past", metavar=FLAG, help="Print what is kept, and stop.")
    ] = False,
) -> None:
    """Print alerts as they happen, across restarts of the aggregator, until interrupted.

    A run need not be there yet. The times are those of the aggregator, in UTC.
    """
    _look_for(url, run)
    try:
        for event in past_events(url, run, after or 0) if past else follow_alerts(url, run, after):
            if as_json:
                print(json.dumps(event), flush=True)
            else:
                console.print(_line(event), soft_wrap=True)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _look_for(url: str, run: str | None) -> None:
    """Say that a run is not there yet: its name may be a slip.

    Raises:
        GradwatchError: If no run can have that name.
    """
    if run is not None and not is_known(url, named(run)):
        print(f"gradwatch: no run {run!a} yet", file=sys.stderr)


def _line(event: dict[str, Any]) -> Text:
    return Text.assemble(
        printable(f"#{event['cursor']} {moment(event['updated_at'])} {event['run']} "),
        (printable(f"{event['state']} {event['severity']} {event['rule']}: "), "bold"),
        printable(event["message"]),
    )
