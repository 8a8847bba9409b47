"""One question over HTTP, by the standard library: a client has no httpx."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gradwatch_server.errors import GradwatchError

TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered.

    Args:
        status: HTTP's number for how it went.
        body: The JSON in it, None if it is not JSON.
        took_s: How long it took, the connection included.
    """

    status: int
    body: Any
    took_s: float

    @property
    def fields(self) -> Mapping[str, Any]:
        """The body if it is an object, else nothing."""
        return self.body if isinstance(self.body, dict) else {}

    @property
    def is_aggregator(self) -> bool:
        """Whether it is the answer to `/healthz` of an aggregator."""
        fields = self.fields
        return self.status == http.client.OK and {"version", "cursor"} <= fields.keys()


def ask(
    url: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    trusted: ssl.SSLContext | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Answer:
    """Ask once, straight, whatever proxies are set.

    Args:
        url: `http://host:port` or `https://...`.
        path: What is asked for.
        headers: Sent with it.
        trusted: Whose certificates are believed; None for the system's.
        timeout_s: How long the connection, and each part of the answer, may take.

    Raises:
        GradwatchError: If nothing that speaks HTTP answers in time.
    """
    began_s = time.monotonic()
    try:
        connection = _connection(url, trusted, timeout_s)
    except (ValueError, http.client.InvalidURL) as fault:
        msg = f"{url!r} is not a URL like http://127.0.0.1:8420"
        raise GradwatchError(msg) from fault
    try:
        connection.request(
            "GET", urlsplit(url).path.rstrip("/") + path, headers=dict(headers or {})
        )
        response = connection.getresponse()
        body = response.read(MAX_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as fault:
        raise GradwatchError(_why(fault, timeout_s)) from fault
    finally:
        connection.close()
    return Answer(response.status, _parsed(body), time.monotonic() - began_s)


def _connection(
    url: str, trusted: ssl.SSLContext | None, timeout_s: float
) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(url)
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    return http.client.HTTPSConnection(
        parts.hostname, parts.port, timeout=timeout_s, context=trusted
    )


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _why(fault: Exception, timeout_s: float) -> str:
    if isinstance(fault, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"its certificate is not believed ({fault.verify_message})"
    if isinstance(fault, ssl.SSLError):
        return f"no TLS there ({fault.reason})"
    if isinstance(fault, http.client.HTTPException):
        return f"it does not speak HTTP ({type(fault).__name__})"
    return str(getattr(fault, "strerror", None) or fault)
