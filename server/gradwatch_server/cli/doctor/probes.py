"""One question to an aggregator, over HTTP or at its ingest port; nothing of it is left there.

Both need no more than the client does. Whatever proxies are set, the question goes straight.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import zmq

from gradwatch_server.cli.dealer import connect, dealer
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import Beat, Envelope, decode, encode
from gradwatch_wire.keyfile import ClientKey

TIMEOUT_S: Final = 3.0
MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer.

    Args:
        fields: The JSON object in it; empty if there is none.
    """

    status: int
    fields: Mapping[str, Any]
    took_s: float

    @property
    def is_aggregator(self) -> bool:
        """True for an aggregator's answer to `/healthz`."""
        return self.status == http.client.OK and {"version", "now"} <= self.fields.keys()

    @property
    def why(self) -> str:
        return str(self.fields.get("detail", f"HTTP {self.status}"))


def ask(
    url: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    trusted: ssl.SSLContext | None = None,
) -> HttpResponse:
    """Ask once, and raise GradwatchError if nothing that speaks HTTP answers in time."""
    began_s = time.monotonic()
    try:
        connection = _connection(url, trusted)
    except (ValueError, http.client.InvalidURL) as fault:
        msg = f"{url!r} is not a URL like http://127.0.0.1:8420"
        raise GradwatchError(msg) from fault
    try:
        connection.request(
            "GET", urlsplit(url).path.rstrip("/") + path, headers=dict(headers or {})
        )
        response = connection.getresponse()
        body = response.read(MAX_BYTES)
    except TimeoutError as fault:
        msg = f"{url}: no answer within {TIMEOUT_S:g} s"
        raise GradwatchError(msg) from fault
    except (OSError, http.client.HTTPException, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
        msg = f"{url}: {reason}"
        raise GradwatchError(msg) from fault
    finally:
        connection.close()
    return HttpResponse(response.status, _fields(body), time.monotonic() - began_s)


def _connection(url: str, trusted: ssl.SSLContext | None) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(url)
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection(
        parts.hostname, parts.port, timeout=TIMEOUT_S, context=trusted
    )


def _fields(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def exchange(endpoint: str, key: ClientKey | None) -> float | None:
    """Shake hands, send a BEAT of a session that nobody knows, and hang up.

    Returns the round trip in s, None without an answer.

    Raises:
        GradwatchError: If ZeroMQ does not take the endpoint, or its handshake does not succeed.
        ProtocolError: If the answer is none of an aggregator, or of another protocol.
    """
    envelope = Envelope(session=os.urandom(16), record=Beat(last_step=-1, since_s=0.0))
    with dealer(endpoint, key) as socket:
        connect(socket, endpoint)
        if not socket.poll(round(1e3 * TIMEOUT_S), zmq.POLLOUT):
            msg = f"ZeroMQ's handshake did not succeed within {TIMEOUT_S:g} s"
            raise GradwatchError(msg)
        began_s = time.monotonic()
        socket.send(encode(envelope))
        if not socket.poll(round(1e3 * TIMEOUT_S)):
            return None
        decode(socket.recv())
        return time.monotonic() - began_s
