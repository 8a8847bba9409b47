"""The `gradwatch` command: its name, its version, and the commands that are its parts."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from gradwatch_server.cli.commands import COMMANDS
from gradwatch_server.cli.errors import clear_errors

FLAG: Final = ""
"""The value that help shows of a flag: typer would show `<bool>`, as if one could be given."""


class _PlainHelp:
    """Shows `--help` as the flag that it is."""

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        option: TyperOption | None = super().get_help_option(ctx)  # type: ignore[misc]  # of a command
        if option is not None:
            option.metavar = FLAG
        return option


class _Command(_PlainHelp, TyperCommand):
    pass


class _Lazy(TyperCommand):
    """A command that is imported when it runs."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return load(str(self.name)).make_context(info_name, args, parent=parent, **extra)


class _Group(_PlainHelp, TyperGroup):
    """The commands by name. Only who asks for all of them imports all."""

    @property
    def commands(self) -> dict[str, Any]:
        return {name: load(name) for name in COMMANDS}

    @commands.setter
    def commands(self, _commands: object) -> None:
        """Take none over: they are in `COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as click calls it
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:  # noqa: ARG002
        return _Lazy(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None


@cache
def load(name: str) -> Any:
    """Import a command and return it as click knows it."""
    found = getattr(import_module(f"gradwatch_server.cli.commands.{name}"), name)
    if not isinstance(found, typer.Typer):
        command, found = found, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        found.command(name, cls=_Command)(clear_errors(command))
    made = get_command(found)
    made.name = name
    return made


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
        from gradwatch_wire import __version__  # noqa: PLC0415 - no other command needs it

        print(f"gradwatch {__version__}")
        raise typer.Exit
