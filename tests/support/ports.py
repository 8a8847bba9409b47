"""Ports that stay free until the process they are meant for binds them, and IPv6."""

from __future__ import annotations

import socket
import sys


def has_ipv6() -> bool:
    """Tell whether this machine can listen on the IPv6 loopback address."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class ReservedPort:
    """A loopback port that nobody else is given as long as this object is open.

    A port that is only found free may be taken before it is used: by another process, or by a
    client's own attempt to connect to it. This one is bound, which refuses connections, and may be
    bound again by a listener that allows address reuse, as ours do. Only Linux permits that; on
    other systems the port is found and released.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self.close()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.number}"

    def close(self) -> None:
        self._socket.close()
