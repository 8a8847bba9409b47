"""Endpoint of the aggregator: the argument, `GRADWATCH_ENDPOINT`, the default; one or several."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from typing import Final

from gradwatch_wire.names import DEFAULT_ENDPOINT

_ENDPOINT: Final = re.compile(
    r"tcp://([a-z0-9][a-z0-9._;-]*|\[[0-9a-f:.]+(%\w+)?\]):\d{1,5}|ipc://(?!@?\Z)[^\0]+",
    re.ASCII | re.IGNORECASE,
)
_COMMA: Final = re.compile(r",\s*")
_COMMA_AND_SCHEME: Final = re.compile(r",\s*(?=\w+://)")
_MAX_IPC_BYTES: Final = 107  # what fits into a Unix socket's address


def find_endpoints(endpoint: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the aggregator's endpoints, in the order given.

    Args:
        endpoint: One, several with commas between them, or a sequence of them; None for what the
            environment says.

    Raises:
        TypeError: If it is neither a string nor a sequence of strings.
        ValueError: If there is none, one is given twice, or one is not of a form that ZeroMQ can
            connect to.
    """
    found = _split(endpoint)
    for number, each in enumerate(found, 1):
        if not isinstance(each, str):
            msg = f"endpoint: a string or a list of strings, got {type(each).__name__} in it"
            raise TypeError(msg)
        if not _ENDPOINT.fullmatch(each) or not _address_fits(each):
            which = f"{each!r}, {number} of {len(found)}," if len(found) > 1 else repr(each)
            msg = f"endpoint: {which} is not like {DEFAULT_ENDPOINT} or ipc:///path/to/socket"
            raise ValueError(msg)
        if each in found[: number - 1]:
            msg = f"endpoint: {each!r} is given twice"
            raise ValueError(msg)
    return found


def find_endpoint(endpoint: str | None) -> str:
    """Return the aggregator's endpoint, for what speaks with one only.

    Raises:
        TypeError: As `find_endpoints`.
        ValueError: As `find_endpoints`, and if there are several.
    """
    first, *others = find_endpoints(endpoint)
    if others:
        given = ", ".join((first, *others))
        msg = f"endpoint: one at a time, got {1 + len(others)}: {given}; give one with --endpoint"
        raise ValueError(msg)
    return first


def _split(endpoint: str | Sequence[str] | None) -> tuple[str, ...]:
    if endpoint is None or isinstance(endpoint, str):
        given = endpoint or os.environ.get("GRADWATCH_ENDPOINT") or DEFAULT_ENDPOINT
        # The path of a Unix socket may have commas in it.
        is_path = "ipc://" in given.lower()
        return tuple((_COMMA_AND_SCHEME if is_path else _COMMA).split(given))
    if isinstance(endpoint, bytes) or not isinstance(endpoint, Sequence):
        msg = f"endpoint: a string or a list of strings, got {type(endpoint).__name__}"
        raise TypeError(msg)
    if not endpoint:
        msg = f"endpoint: at least one, such as {DEFAULT_ENDPOINT}, got an empty list"
        raise ValueError(msg)
    return tuple(endpoint)


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
