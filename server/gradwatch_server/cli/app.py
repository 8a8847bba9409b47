"""The `gradwatch` command: its name, its version, and the commands that are its parts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec, TypeVar

import typer

from gradwatch_server.cli.commands import COMMANDS
from gradwatch_server.core.alerting.alert import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import __version__

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    name="gradwatch",
    help="Gradient telemetry for PyTorch: which layer on which rank went wrong at which step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version when asked."""
    if show:
        print(f"gradwatch {__version__}")
        raise typer.Exit


def clear_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print what a person can act on in one line, and exit 1."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except GradwatchError as error:
            print(f"gradwatch: {printable(str(error))}", file=sys.stderr)
            raise typer.Exit(1) from error

    return wrapped


for one in COMMANDS:
    app.command()(clear_errors(one))
