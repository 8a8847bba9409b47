"""`gradwatch keys`: makes the keys directory, and adds clients to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import DEFAULT_KEYS, add_client, make_keys


def keys(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where the aggregator's keys are, or are to be.")
    ] = DEFAULT_KEYS,
    client: Annotated[
        str | None, typer.Option(help="Add a client of this name to the keys that are there.")
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(help="A run, or pattern of runs, that this client may write; all without it."),
    ] = None,
) -> None:
    """Make the keys and tokens that let clients and readers in from other machines."""
    if client is None and run:
        msg = "--run is for a client; name it with --client NAME"
        raise GradwatchError(msg)
    made = make_keys(directory) if client is None else [add_client(directory, client, run or ["*"])]
    for path in made:
        print(path)
    if client is None:
        print(f"aggregator: gradwatch serve --keys-dir {directory}")
        print("training:   GRADWATCH_KEYS=FILE, a copy of client.key that only its owner can read")
        print(f"readers:    GRADWATCH_TOKEN=TOKEN, one of those in {directory / 'tokens.toml'}")
