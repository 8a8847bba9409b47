"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gradwatch_server.cli.app import FLAG
from gradwatch_server.config_file import CONFIG_VARIABLE, DEFAULT_CONFIG
from gradwatch_wire.names import DEFAULT_HTTP

DEFAULT_URL: Final = f"http://{DEFAULT_HTTP}"

Url = Annotated[
    str, typer.Option("--url", envvar="GRADWATCH_URL", help="HTTP address of the aggregator.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        help=f"Settings file; without it the one that {CONFIG_VARIABLE} names.",
        show_default=f"{DEFAULT_CONFIG} if there is one",
    ),
]
By = Annotated[str | None, typer.Option(help="Who you are.", show_default="the name of the user")]
Comment = Annotated[str, typer.Option(help="Why.")]
AsJson = Annotated[
    bool, typer.Option("--json", metavar=FLAG, help="Print JSON, one document a line.")
]


def check_name(place: Path | None, option: str) -> None:
    """Refuse a path that names nothing that could be made, such as `.` or `/`."""
    if place is not None and not place.name:
        raise typer.BadParameter(
            "the path of what is made, with a name at its end", param_hint=option
        )


def setting(name: str, *flags: str) -> Any:
    """Return the option of a setting: its help and default stand in `Settings` alone."""
    # Most commands have no such option, and the settings take 0.6 s to import.
    from gradwatch_server.settings import Settings  # noqa: PLC0415

    field = Settings.model_fields[name]
    shown = str(field.default) if field.default else False
    return typer.Option(*flags, help=field.description, show_default=shown)
