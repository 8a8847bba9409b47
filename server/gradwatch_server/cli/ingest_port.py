"""Notices that `--url` leads to an ingest port: ZeroMQ speaks first, and not in HTTP.

Without it the request would wait until it times out, for an answer that never gets a line end.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping
from typing import Any, Final

from gradwatch_server.errors import GradwatchError
from gradwatch_wire.names import HTTP_PORT

FIRST_BYTE: Final = b"\xff"
"""Of the greeting that ZMTP sends as soon as it is connected to; no HTTP answer begins so."""

_WAIT_S: Final = 2.0


class IngestPortCheck:
    """The `trace` extension of one httpx request: looks at the first byte of the answer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket: socket.socket | None = None

    def __call__(self, event: str, about: Mapping[str, Any]) -> None:
        """Follow what httpx does.

        Raises:
            GradwatchError: If an ingest port answers.
        """
        if event == "connection.connect_tcp.complete":
            self._socket = about["return_value"].get_extra_info("socket")
        elif event == "connection.start_tls.started":
            self._socket = None  # TLS takes it over, and fails at once with an ingest port
        elif event == "http11.receive_response_headers.started" and self._socket is not None:
            self._look(self._socket)

    def _look(self, connected: socket.socket) -> None:
        readable, _, _ = select.select([connected], [], [], _WAIT_S)
        if readable and connected.recv(1, socket.MSG_PEEK) == FIRST_BYTE:
            msg = (
                f"{self._url} is an ingest port, which takes records and answers no questions; "
                f"give the HTTP address with --url, by default port {HTTP_PORT}"
            )
            raise GradwatchError(msg)
