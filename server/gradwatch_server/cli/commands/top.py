"""`gradwatch top`: the runs, or one of them, live in the terminal."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gradwatch_server.cli.client import get, run_path
from gradwatch_server.cli.options import DEFAULT_URL, Url
from gradwatch_server.errors import GradwatchError


def top(
    run: Annotated[str | None, typer.Argument(help="The run to open; without it the list.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the runs, or one of them, live in the terminal."""
    if not _has_terminal():
        print_ = "'gradwatch runs' and 'gradwatch health RUN' print once"
        msg = f"top draws in a terminal, and this is none; {print_}"
        raise GradwatchError(msg)
    # Whether anybody answers is found out before the screen is taken.
    get(url, "/healthz" if run is None else run_path(run, "health"))
    from gradwatch_server.cli.top.app import TopApp

    app = TopApp(url, run)
    app.run()
    if app.fault is not None:
        raise app.fault


def _has_terminal() -> bool:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM") != "dumb"
