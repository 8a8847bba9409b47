"""`gradwatch doctor`: says what keeps gradwatch from working here, and what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from gradwatch_server.cli.doctor.check import Result, run_checks
from gradwatch_server.cli.doctor.client import CLIENT_CHECKS
from gradwatch_server.cli.doctor.client.subject import ClientSide
from gradwatch_server.cli.doctor.finding import Level
from gradwatch_server.cli.doctor.report import Sides, document, exit_code, summary
from gradwatch_server.cli.doctor.server import SERVER_CHECKS
from gradwatch_server.cli.doctor.server.subject import ServerSide
from gradwatch_server.cli.options import AsJson, Config, setting
from gradwatch_server.cli.rendering import console, plain

COLOURS: Final = {
    Level.OK: "green",
    Level.WARNING: "yellow",
    Level.ERROR: "bold red",
    Level.SKIPPED: "dim",
}


def doctor(
    http: Annotated[str | None, setting("http")] = None,
    ingest: Annotated[str | None, setting("ingest")] = None,
    data: Annotated[Path | None, setting("data")] = None,
    config: Config = None,
    keys_dir: Annotated[Path | None, setting("keys_dir")] = None,
    insecure: Annotated[bool | None, setting("insecure", "--insecure")] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWATCH_ENDPOINT",
            help="Look from the side of a training, whose records go there.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWATCH_URL",
            help="HTTP address of the aggregator, for the side of a training.",
            show_default="port 8420 of the endpoint's host",
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="Key file of a client, for the side of a training; else GRADWATCH_KEYS."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what keeps gradwatch from working here, and what to do.

    Without --endpoint it looks at the machine of an aggregator, with the options of serve; with it
    at the way from a training to its aggregator. It exits 1 if something is wrong; warnings do not
    count.
    """
    given = {
        "http": http,
        "ingest": ingest,
        "data": data,
        "keys_dir": keys_dir,
        "insecure": insecure,
    }
    sides: Sides = {}
    if endpoint is None or config is not None or any(map(_is_given, given.values())):
        sides["server"] = list(run_checks(SERVER_CHECKS, ServerSide(config, **given)))
    if endpoint is not None:
        sides["client"] = list(run_checks(CLIENT_CHECKS, ClientSide(endpoint, url, keys)))
    if as_json:
        print(json.dumps(document(sides)))
    else:
        for side, results in sides.items():
            console.print(_table(side, results))
        console.print(plain(summary(sides)))
    raise typer.Exit(exit_code(sides))


def _is_given(value: object) -> bool:
    return value is not None


def _table(side: str, results: Sequence[Result]) -> Table:
    titles = {"server": "The machine of an aggregator", "client": "The way from a training"}
    table = Table(title=titles[side], title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("check", "", "found, and what to do"):
        table.add_column(heading, no_wrap=heading != "found, and what to do")
    for result in results:
        finding = result.finding
        text = plain(finding.detail)
        if finding.advice:
            text += Text("\n-> ", style="bold") + plain(finding.advice)
        level = Text(finding.level, style=COLOURS[finding.level])
        table.add_row(plain(result.check.name), level, text)
    return table
