"""`gradwatch top`: the runs, or one of them, live in the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Annotated, Any

import typer

from gradwatch_server.cli.async_client import connected
from gradwatch_server.cli.client import get, run_path
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.top.snapshot import read_run, read_runs
from gradwatch_server.errors import GradwatchError


def top(
    run: Annotated[str | None, typer.Argument(help="The run to open; without it the list.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the runs, or one of them, live in the terminal; --json prints them once."""
    if not as_json and not _has_terminal():
        msg = "top draws in a terminal, and this is none; --json prints once what it would show"
        raise GradwatchError(msg)
    # Whether anybody answers is found out before the screen is taken.
    get(url, "/healthz" if run is None else run_path(run, "health"))
    if as_json:
        print(json.dumps(asyncio.run(_read(url, run))))
        return
    from gradwatch_server.cli.top.app import TopApp

    app = TopApp(url, run)
    app.run()
    if app.fault is not None:
        raise app.fault


def _has_terminal() -> bool:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM") != "dumb"


async def _read(url: str, run: str | None) -> dict[str, Any]:
    async with connected(url) as client:
        return await (read_runs(client) if run is None else read_run(client, run))
