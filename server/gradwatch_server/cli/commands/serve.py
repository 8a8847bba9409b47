"""`gradwatch serve`: runs the aggregator."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

from gradwatch_server.cli.options import Config, setting
from gradwatch_server.config_file import DEFAULT_CONFIG, check_config, find_config
from gradwatch_server.keys import TOKENS, read_keys
from gradwatch_server.service import serve as run_service
from gradwatch_server.settings import Settings, load_settings
from gradwatch_wire import __version__

READY: Final = b"READY=1"


def tell_ready() -> None:
    """Send a datagram to the socket that the environment names; without one nobody has asked."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # of Linux's abstract names, which are in no file system
        address = "\0" + address[1:]
    # A service goes on without it: whoever waits gives up by himself, and says so.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(READY, address)


def serve(
    http: Annotated[str | None, setting("http")] = None,
    ingest: Annotated[str | None, setting("ingest")] = None,
    data: Annotated[Path | None, setting("data")] = None,
    store: Annotated[str | None, setting("store")] = None,
    config: Config = None,
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
        store=store,
        keys_dir=keys_dir,
        insecure=insecure,
    )
    settings = load()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    def announce(http_url: str, ingest_endpoint: str | None) -> None:
        print(f"gradwatch {__version__}", flush=False)
        print(f"  http    {http_url}")
        if ingest_endpoint is None:
            ingest_endpoint = "closed: this node waits for the lease of the store"
        print(f"  ingest  {ingest_endpoint}")
        if settings.keys_dir is not None:
            print(f"  page    {_page(http_url, settings.keys_dir)}")
        print(f"  data    {settings.data_name}", flush=True)
        tell_ready()

    def reload() -> Settings:
        check_config(find_config(config) or DEFAULT_CONFIG)
        return load()

    run_service(settings, announce, reload)


def _page(http_url: str, keys_dir: Path) -> str:
    """Say where the page is and which token it asks for.

    The token itself is shown to a person at a terminal only: what is not one is kept as a log, and
    others read that.
    """
    if not sys.stdout.isatty():
        return f"{http_url}/ (asks for the token `read` in {keys_dir / TOKENS})"
    token = read_keys(keys_dir).tokens.read
    return f"{http_url}/#token={quote(token, safe='')}"
