"""The addresses of NATS servers as people give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from gradwatch_server.errors import GradwatchError


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses of the servers of one cluster, and what lets a client in.

    Args:
        urls: The addresses, without credentials.
        credentials: Arguments of the library's `connect`.
    """

    urls: tuple[str, ...]
    credentials: dict[str, Any]

    def __str__(self) -> str:
        return ", ".join(self.urls)


def parse_servers(addresses: Sequence[str]) -> Servers:
    """Return the servers at addresses such as `nats://user:password@host:4222`.

    Credentials of the first address that has any hold for all: the servers of a cluster tell a
    client of each other, and these addresses have none.

    Raises:
        GradwatchError: If there is none, or one cannot be an address.
    """
    parsed = [_parse(address.strip()) for address in addresses]
    if not parsed:
        msg = "no NATS server is named: give one or more, such as nats://127.0.0.1:4222"
        raise GradwatchError(msg)
    credentials = next((_credentials(parts) for parts in parsed if parts.username), {})
    return Servers(tuple(_shown(parts) for parts in parsed), credentials)


def _parse(address: str) -> SplitResult:
    try:
        parts = urlsplit(address if "://" in address else f"nats://{address}")
        is_address = parts.scheme in ("nats", "tls") and bool(parts.hostname)
        is_address = is_address and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        is_address = False
    if not is_address:
        shown = address.rpartition("@")[2]  # what stands before it may be a password
        msg = f"not the address of a NATS server: {shown!r}; it is to be such as nats://HOST:4222"
        raise GradwatchError(msg)
    return parts


def _shown(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or 4222}"


def _credentials(parts: SplitResult) -> dict[str, Any]:
    if parts.password is None:
        return {"token": unquote(parts.username or "")}
    return {"user": unquote(parts.username or ""), "password": unquote(parts.password)}
