"""Addresses as people write them: `host:port`, ZeroMQ endpoints, and who can reach them."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from gradwatch_server.errors import GradwatchError
from gradwatch_wire.names import DEFAULT_ENDPOINT, DEFAULT_HTTP

_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]+")
_PORT: Final = re.compile(r"[0-9]{1,5}")


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`.

    Raises:
        ValueError: If it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        msg = f"not of the form host:port, such as {DEFAULT_HTTP}"
        raise ValueError(msg)
    return host.strip("[]"), int(port)


def endpoint_host(endpoint: str) -> str | None:
    """Return the host of a tcp endpoint, None for `ipc://`.

    Raises:
        GradwatchError: If it is neither.
    """
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc" and address:
        return None
    host, _, port = address.rpartition(":")
    if scheme == "tcp" and host and (port == "*" or (_PORT.fullmatch(port) and int(port) < 65536)):
        return host
    msg = f"ingest endpoint {endpoint!r} is not like {DEFAULT_ENDPOINT} or ipc:///path"
    raise GradwatchError(msg)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches *host*."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Tell whether *host* stands for all addresses of this machine."""
    if host == "*":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_ip_address(host: str) -> bool:
    """Tell whether *host* is a number, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def database_name(url: str) -> str:
    """Return the URL of a database without user, password and options, for people."""
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
