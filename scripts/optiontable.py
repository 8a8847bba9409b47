"""The table in docs/commands.md: every option of every command, from the command's own help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from typer.main import get_command

from gradwatch_server.cli.app import app

BEGIN: Final = "<!-- All options, written by scripts/docs. -->\n"

HEAD: Final = "| option | of | what it is |\n| --- | --- | --- |\n"


def table() -> str:
    """Return the table; what is the same in several commands is one row."""
    commands: dict[tuple[str, str], list[str]] = {}
    for path, option in options():
        command = f"`{' '.join(('gradwatch', *path))}`"
        commands.setdefault((_names(option), _help(option)), []).append(command)
    return HEAD + "".join(
        f"| {names} | {', '.join(own)} | {what} |\n" for (names, what), own in commands.items()
    )


def options() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the options with the names of their commands, `--help` left out."""
    yield from _options(get_command(app), ())


def _options(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for option in command.params:
        if option.param_type_name == "option":
            yield path, option
    for name, further in getattr(command, "commands", {}).items():
        yield from _options(further, (*path, name))


def _names(option: Any) -> str:
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _help(option: Any) -> str:
    text = " ".join((option.help or "").split()).replace("|", r"\|")
    shown = isinstance(option.default, str | int | float) and option.default not in (False, "")
    return f"{text} Default: `{option.default}`." if shown else text
