"""Sockets that are connected to the ingest port of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from gradwatch_server.ingest.socket import Ingest
from gradwatch_wire.keyfile import ClientKey


@pytest.fixture
def dealer(ingest: Ingest) -> Iterator[Callable[..., Any]]:
    """Connect a socket: `dealer()`, with a key, or of another type."""
    made: list[Any] = []

    def connect(key: ClientKey | None = None, kind: int = zmq.DEALER) -> Any:
        made.append(context.socket(kind))
        made[-1].linger = 0
        if key is not None:
            made[-1].curve_serverkey = key.server.encode()
            made[-1].curve_publickey = key.public.encode()
            made[-1].curve_secretkey = key.secret.encode()
        made[-1].connect(ingest.endpoint)
        return made[-1]

    with zmq.Context() as context:
        yield connect
        for one in made:
            one.close()
