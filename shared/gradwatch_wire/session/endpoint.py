"""Where the aggregator listens: the argument, `GRADWATCH_ENDPOINT`, the default."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Final

from gradwatch_wire.names import DEFAULT_ENDPOINT

_ENDPOINT: Final = re.compile(
    r"tcp://([a-z0-9][a-z0-9._;-]*|\[[0-9a-f:.]+(%\w+)?\]):\d{1,5}|ipc://[^\0]+",
    re.ASCII | re.IGNORECASE,
)
_MAX_IPC_BYTES: Final = 107  # what fits into a Unix socket's address


def find_endpoint(endpoint: str | None) -> str:
    """Return the aggregator's endpoint.

    Raises:
        TypeError: If it is no string.
        ValueError: If it is not of a form that ZeroMQ can connect to.
    """
    found = endpoint or os.environ.get("GRADWATCH_ENDPOINT") or DEFAULT_ENDPOINT
    if not isinstance(found, str):
        msg = f"endpoint: a string, got {type(found).__name__}"
        raise TypeError(msg)
    if not _ENDPOINT.fullmatch(found) or not _address_fits(found):
        msg = f"endpoint: {found!r} is not like {DEFAULT_ENDPOINT} or ipc:///path/to/socket"
        raise ValueError(msg)
    return found


def _address_fits(endpoint: str) -> bool:
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc":
        return len(os.fsencode(address)) <= _MAX_IPC_BYTES
    host, _, port = address.rpartition(":")
    return 0 < int(port) < 65_536 and (host[0] != "[" or _is_ipv6(host[1:-1]))


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
