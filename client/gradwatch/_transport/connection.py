"""The connection to the aggregator: a ZeroMQ socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from gradwatch._transport.keys import use_key
from gradwatch._transport.room import check_descriptors, check_room
from gradwatch_wire.keyfile import ClientKey
from gradwatch_wire.session.timing import SILENCE_S

# Why each value: docs/protocol.md.
SOCKET_OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.IMMEDIATE: 1,
    zmq.SNDHWM: 100,
    zmq.RCVHWM: 0,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 3_000,
    zmq.CONNECT_TIMEOUT: 3_000,
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: round(1e3 * SILENCE_S),
    zmq.HEARTBEAT_TTL: round(1e3 * SILENCE_S),
}

_BROKEN: Final = (
    zmq.Event.CONNECT_RETRIED
    | zmq.Event.DISCONNECTED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)


class Connection:
    """Made by one thread, then used and closed by one only.

    It does not wait for the other side: ZeroMQ connects by itself, again and again, until a
    handshake was refused.
    """

    def __init__(self, endpoint: str, key: ClientKey | None) -> None:
        """Open it.

        Raises:
            ValueError: If there is no room for it (see `check_room`), or ZeroMQ does not take the
                endpoint.
        """
        check_room()
        self._key = key
        with ExitStack() as undo:
            with _named(endpoint):
                self._context = zmq.Context()
            undo.callback(self._context.term)
            self._socket, self._monitor = self._opened(endpoint)
            self._is_connected = False
            undo.pop_all()

    def move(self, endpoint: str) -> None:
        """Leave the one that it is connected to for another; what that one sends is not read.

        Raises:
            ValueError: If there is no room for it, or ZeroMQ does not take the endpoint. Then it
                stays where it is.
        """
        check_descriptors()
        socket, monitor = self._opened(endpoint)
        self._close_socket()
        self._socket, self._monitor, self._is_connected = socket, monitor, False

    @property
    def is_connected(self) -> bool:
        """State: true from a handshake that succeeded to the end of the connection."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            self._is_connected = event == zmq.Event.HANDSHAKE_SUCCEEDED
        return self._is_connected

    def _opened(self, endpoint: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        with _named(endpoint), ExitStack() as undo:
            socket = self._context.socket(zmq.DEALER)
            undo.callback(socket.close, linger=0)
            monitor = socket.get_monitor_socket(_BROKEN | zmq.Event.HANDSHAKE_SUCCEEDED)
            undo.callback(_close_monitor, socket, monitor)
            for option, value in SOCKET_OPTIONS.items():
                socket.setsockopt(option, value)
            # Only where it is asked for: with it a name may resolve to where nobody listens.
            socket.setsockopt(zmq.IPV6, int("[" in endpoint))
            if self._key is not None:
                use_key(socket, self._key)
            socket.connect(endpoint)
            undo.pop_all()
        return socket, monitor

    def wait(self, timeout_ms: int) -> bool:
        return bool(self._socket.poll(timeout_ms))

    def receive(self) -> bytes | None:
        """Return the next message, None if there is none."""
        # A message must stay one frame: libzmq aborts the process where a connection is lost
        # between the frames of a message that is being read (`fq.cpp`).
        try:
            return self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def send(self, message: bytes) -> bool:
        """Hand a message to ZeroMQ; False if it takes none for now."""
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        self._close_socket()
        self._context.term()

    def _close_socket(self) -> None:
        _close_monitor(self._socket, self._monitor)
        self._socket.close(linger=0)


def _close_monitor(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    socket.disable_monitor()
    monitor.close(linger=0)


@contextmanager
def _named(endpoint: str) -> Iterator[None]:
    """Raise what ZeroMQ raises as a ValueError that names the endpoint."""
    try:
        yield
    except zmq.ZMQError as error:
        msg = f"endpoint: ZeroMQ cannot connect to {endpoint!r}: {error.strerror}"
        raise ValueError(msg) from error
