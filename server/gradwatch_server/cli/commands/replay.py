"""`gradwatch replay`: sends the spill files that killed workers left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradwatch_server.cli.app import FLAG
from gradwatch_server.cli.replay import find_key, replay_files, sent_line
from gradwatch_wire.names import DEFAULT_ENDPOINT


def replay(
    files: Annotated[list[Path], typer.Argument(help="Spill files, or directories of them.")],
    endpoint: Annotated[
        str, typer.Option(envvar="GRADWATCH_ENDPOINT", help="Where the aggregator listens.")
    ] = DEFAULT_ENDPOINT,
    keys: Annotated[
        Path | None,
        typer.Option(help="Key file of a client; without it the one in GRADWATCH_KEYS."),
    ] = None,
    remove: Annotated[
        bool,
        typer.Option("--remove", metavar=FLAG, help="Delete files whose records are all stored."),
    ] = False,
) -> None:
    """Send the records that killed workers left on disk; none is stored twice."""
    for sent in replay_files(files, endpoint, find_key(keys), remove=remove):
        print(sent_line(sent))
