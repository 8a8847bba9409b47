"""Where the aggregator answers HTTP: from what it says of itself, as far as it is known."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_BOUND: Final = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):([0-9]{1,5})")


def find_http_url(bound: str, endpoint: str) -> str | None:
    """Return where HTTP is answered; None where that cannot be reached from here.

    Args:
        bound: Where the aggregator answers HTTP, as it is bound, such as `http://0.0.0.0:8420`;
            empty if it did not say.
        endpoint: Where this process sends to.
    """
    match = _BOUND.fullmatch(bound)
    if match is None:
        return None
    scheme, host, port = match.groups()
    if _is_unspecified(host):  # on all addresses, so also on that by which records get there
        host = _host_of(endpoint)
    elif _is_loopback(host) and not _is_loopback(_host_of(endpoint)):
        return None  # on the aggregator's own machine only, which this may not be
    return f"{scheme}://{host}:{port}"


def _host_of(endpoint: str) -> str:
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc":
        return "127.0.0.1"
    return address.rpartition(";")[2].rpartition(":")[0]


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
