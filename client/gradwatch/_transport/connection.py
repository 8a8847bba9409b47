"""The connection to the aggregator: a ZeroMQ socket, and what is seen of its handshakes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

import zmq

from gradwatch._transport.handshakes import Handshakes
from gradwatch._transport.keys import use_key
from gradwatch._transport.room import check_room
from gradwatch_wire.keyfile import ClientKey

# Why each value: docs/protocol.md.
_OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.IMMEDIATE: 1,
    zmq.SNDHWM: 100,
    zmq.RCVHWM: 0,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 3_000,
    zmq.CONNECT_TIMEOUT: 3_000,
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 6_000,
    zmq.HEARTBEAT_TTL: 6_000,
}


class Connection:
    """Made by one thread, then used and closed by one only.

    It does not wait for the other side: ZeroMQ connects by itself, again and again.
    """

    def __init__(self, endpoint: str, key: ClientKey | None) -> None:
        """Open it.

        Raises:
            ValueError: If there is no room for it (see `check_room`), or ZeroMQ does not take the
                endpoint.
        """
        check_room()
        self.endpoint = endpoint
        with ExitStack() as undo:
            try:
                self._context = zmq.Context()
                undo.callback(self._context.term)
                self._socket = self._context.socket(zmq.DEALER)
                undo.callback(self._socket.close, linger=0)
                self.handshakes = Handshakes(self._socket, endpoint)
                undo.callback(self.handshakes.close)
                self._connect(key)
            except zmq.ZMQError as error:
                msg = f"endpoint: ZeroMQ cannot connect to {endpoint!r}: {error.strerror}"
                raise ValueError(msg) from error
            undo.pop_all()

    def _connect(self, key: ClientKey | None) -> None:
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        # Only where it is asked for: with it a name may resolve to where nobody listens.
        self._socket.setsockopt(zmq.IPV6, int("[" in self.endpoint))
        if key is not None:
            use_key(self._socket, key)
        self._socket.connect(self.endpoint)

    def wait(self, timeout_ms: int) -> bool:
        """Wait for a message; tell whether there is one."""
        return bool(self._socket.poll(timeout_ms))

    def receive(self) -> list[bytes] | None:
        """Return the frames of the next message, None if there is none."""
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def send(self, frames: list[bytes]) -> bool:
        """Hand a message to ZeroMQ; False if it takes none for now."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close it at once."""
        self.handshakes.close()
        self._socket.close(linger=0)
        self._context.term()
