"""ZMTP 3.1 by hand, over a plain socket: what no library would send."""

from __future__ import annotations

import socket
import struct
from typing import Final

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def command(name: bytes, data: bytes = b"") -> bytes:
    body = bytes([len(name)]) + name + data
    return bytes([4, len(body)]) + body


def message(num_bytes: int) -> bytes:
    """Return a message of one frame, of nothing that anybody understands."""
    return b"\x02" + struct.pack(">Q", num_bytes) + bytes(num_bytes)


PING: Final = command(b"PING", struct.pack(">H", 0))
SHORT_PING: Final = command(b"PING", struct.pack(">H", 10))
"""One after which the connection is to end where nothing comes for a second."""


def shake_hands(connection: socket.socket, socket_type: bytes) -> None:
    """Say what begins a connection without keys, from either side."""
    connection.sendall(GREETING)
    received = b""
    while len(received) < len(GREETING):
        received += connection.recv(len(GREETING) - len(received))
    name = b"Socket-Type"
    size = struct.pack(">I", len(socket_type))
    connection.sendall(command(b"READY", bytes([len(name)]) + name + size + socket_type))


def read_until(connection: socket.socket, name: bytes) -> None:
    """Read until the other side sends a command of four letters.

    Raises:
        ConnectionError: If the other side closes the connection before.
    """
    received = b""
    while b"\x04" + name not in received:
        more = connection.recv(4096)
        if not more:
            msg = f"closed without a {name.decode()}"
            raise ConnectionError(msg)
        received = received[-8:] + more
