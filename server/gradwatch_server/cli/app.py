"""The `gradwatch` command: its name, its version, and the commands that are its parts."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from gradwatch_server.cli.commands import COMMANDS
from gradwatch_server.cli.errors import clear_errors
from gradwatch_server.cli.options import FLAG
from gradwatch_wire import __version__


class _PlainHelp:
    """Shows `--help` as the flag that it is."""

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        option: TyperOption | None = super().get_help_option(ctx)  # type: ignore[misc]  # of a command
        if option is not None:
            option.metavar = FLAG
        return option


class _Group(_PlainHelp, TyperGroup):
    pass


class _Command(_PlainHelp, TyperCommand):
    pass


app = typer.Typer(
    cls=_Group,
    name="gradwatch",
    help="Gradient telemetry for PyTorch: which layer on which rank went wrong at which step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[
        bool, typer.Option("--version", metavar=FLAG, help="Print the version.")
    ] = False,
) -> None:
    """Print the version when asked."""
    if show:
        print(f"gradwatch {__version__}")
        raise typer.Exit


for one in COMMANDS:
    if isinstance(one, typer.Typer):
        app.add_typer(one)
    else:
        name = one.__name__.rstrip("_")  # one that Python would take for a word of its own
        app.command(name, cls=_Command)(clear_errors(one))
