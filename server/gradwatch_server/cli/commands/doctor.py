"""`gradwatch doctor`: says what keeps gradwatch from working here, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gradwatch_server.cli.doctor.client import CLIENT_CHECKS, ClientSide
from gradwatch_server.cli.doctor.report import Sides, document, exit_code, lines, run_checks
from gradwatch_server.cli.doctor.server import SERVER_CHECKS, ServerSide
from gradwatch_server.cli.options import AsJson, Config, setting


def doctor(
    http: Annotated[str | None, setting("http")] = None,
    ingest: Annotated[str | None, setting("ingest")] = None,
    data: Annotated[Path | None, setting("data")] = None,
    store: Annotated[str | None, setting("store")] = None,
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
        "store": store,
        "keys_dir": keys_dir,
        "insecure": insecure,
    }
    sides: Sides = {}
    if endpoint is None or config is not None or any(one is not None for one in given.values()):
        sides["server"] = list(run_checks(SERVER_CHECKS, ServerSide(config, **given)))
    if endpoint is not None:
        sides["client"] = list(run_checks(CLIENT_CHECKS, ClientSide(endpoint, url, keys)))
    print(*([json.dumps(document(sides))] if as_json else lines(sides)), sep="\n")
    raise typer.Exit(exit_code(sides))
