"""Identity of a listener at the aggregator's endpoint that does not answer as an aggregator.

ZeroMQ says only that a handshake did not succeed. A second connection, of plain bytes, shows why.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gradwatch_wire.names import DEFAULT_ENDPOINT

_CONNECT_S: Final = 0.5
_ANSWER_S: Final = 0.25

# A greeting of ZeroMQ (RFC 23) in two parts: signature and version; mechanism, no server, padding.
# Which mechanism it wants itself a socket says after the first; what type it is, after the second.
_BEGIN: Final = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00"
_END: Final = b"NULL".ljust(20, b"\0") + bytes(32)
_NUM_READ: Final = 64 + 32
_SOCKET_TYPE: Final = re.compile(rb"Socket-Type\0\0\0.([A-Z]+)", re.DOTALL)
_HTTP: Final = b"HEAD / HTTP/1.0\r\n\r\n"


class Speaks(Enum):
    """Protocol of the peer."""

    NOTHING = "nothing"  # it takes no connection
    SILENCE = "silence"  # it takes connections, and says nothing
    ROUTER = "router"  # ZeroMQ, by a socket as an aggregator's
    ZEROMQ = "zeromq"  # by one of another type
    CURVE = "curve"  # to those who have a key
    HTTP = "http"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Peer:
    """Findings at an endpoint, and the words for them."""

    speaks: Speaks
    what: str


def look_at(endpoint: str) -> Peer:
    """Find out what listens at an endpoint; takes at most a second, and raises nothing."""
    first = _ask(endpoint, (_BEGIN, 32), (_END, _NUM_READ))
    if first is None:
        return Peer(Speaks.NOTHING, "nothing that takes a connection")
    if first[:1] == b"\xff":
        return _zeromq(first)
    if first.startswith(b"SSH-"):
        return Peer(Speaks.OTHER, "an SSH server")
    if first.startswith(b"HTTP/") or (_ask(endpoint, (_HTTP, 5)) or b"").startswith(b"HTTP/"):
        where = f"records go to another address, {DEFAULT_ENDPOINT} by default"
        return Peer(Speaks.HTTP, f"an HTTP server ({where})")
    if not first:
        return Peer(Speaks.SILENCE, "something that takes connections and does not answer")
    return Peer(Speaks.OTHER, f"a server that says {first[:24]!r}")


def _zeromq(greeting: bytes) -> Peer:
    if greeting[12:32].rstrip(b"\0") == b"CURVE":
        return Peer(Speaks.CURVE, "a ZeroMQ socket that asks for a key")
    found = _SOCKET_TYPE.search(greeting)
    if found is None or found[1] == b"ROUTER":
        return Peer(Speaks.ROUTER, "a ZeroMQ socket")
    return Peer(Speaks.ZEROMQ, f"a ZeroMQ socket of type {found[1].decode()}")


def _ask(endpoint: str, *questions: tuple[bytes, int]) -> bytes | None:
    """Return what is answered, empty if nothing is; None without a connection.

    Args:
        questions: What to say, and the length of the answer up to which to wait before going on.
    """
    try:
        connection = _connected(endpoint)
    except (OSError, ValueError):
        return None
    answer = b""
    with connection, contextlib.suppress(OSError):
        for question, size in questions:
            connection.sendall(question)
            deadline_s = time.monotonic() + _ANSWER_S
            while len(answer) < size and (left_s := deadline_s - time.monotonic()) > 0:
                connection.settimeout(left_s)
                if not (more := connection.recv(size)):
                    return answer
                answer += more
            if len(answer) < size:
                break
    return answer


def _connected(endpoint: str) -> socket.socket:
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(_unix_address(address))
        except OSError:
            connection.close()
            raise
        return connection
    # Without the address to connect from, which ZeroMQ takes before a semicolon.
    host, _, port = address.rpartition(";")[2].rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S)


def _unix_address(address: str) -> str:
    """Return an address as the system takes it: ZeroMQ writes an abstract one with an `@`."""
    return f"\0{address[1:]}" if address.startswith("@") else address
