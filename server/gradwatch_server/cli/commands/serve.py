"""`gradwatch serve`: runs the aggregator."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gradwatch_server.cli.options import setting
from gradwatch_server.service import serve as run_service
from gradwatch_server.settings import DEFAULT_CONFIG, Settings, check_config, load_settings
from gradwatch_wire import __version__


def serve(
    http: Annotated[str | None, setting("http")] = None,
    ingest: Annotated[str | None, setting("ingest")] = None,
    data: Annotated[Path | None, setting("data")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file.", show_default="gradwatch.toml if there is one"),
    ] = None,
    keys_dir: Annotated[Path | None, setting("keys_dir")] = None,
    insecure: Annotated[bool | None, setting("insecure", "--insecure")] = None,
) -> None:
    """Run the aggregator until it is told to stop; SIGHUP reads the rules anew."""
    load = partial(
        load_settings,
        config,
        http=http,
        ingest=ingest,
        data=data,
        keys_dir=keys_dir,
        insecure=insecure,
    )
    settings = load()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    def announce(http_url: str, ingest_endpoint: str) -> None:
        print(f"gradwatch {__version__}", flush=False)
        print(f"  http    {http_url}")
        print(f"  ingest  {ingest_endpoint}")
        print(f"  data    {settings.data.resolve()}", flush=True)

    def reload() -> Settings:
        check_config(config or DEFAULT_CONFIG)
        return load()

    run_service(settings, announce, reload)
