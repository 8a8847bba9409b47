"""The `gradwatch` command: its name, its version, and the commands that are its parts."""

from __future__ import annotations

from typing import Annotated

import typer

from gradwatch_server.cli.commands import COMMANDS
from gradwatch_server.cli.errors import clear_errors
from gradwatch_wire import __version__

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


for one in COMMANDS:
    if isinstance(one, typer.Typer):
        app.add_typer(one)
    else:
        app.command()(clear_errors(one))
