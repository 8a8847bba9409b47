"""Watches the handshakes of the sender's socket.

ZeroMQ does not report that one failed, and after some failures it never tries again.
"""

from __future__ import annotations

import errno
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

RETRY_S: Final = 3.0
PATIENCE: Final = 3
"""Connections in a row that end during the handshake. One alone is a restart of the other side."""

_GIVEN_UP: Final = (zmq.Event.HANDSHAKE_FAILED_PROTOCOL, zmq.Event.HANDSHAKE_FAILED_AUTH)
_CUT: Final = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
_DONE: Final = zmq.Event.HANDSHAKE_SUCCEEDED


class Handshakes:
    """Used by the thread that owns the socket, and closed before the context ends."""

    def __init__(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        self._socket = socket
        self._endpoint = endpoint
        self._monitor = socket.get_monitor_socket(_DONE | _CUT | _GIVEN_UP[0] | _GIVEN_UP[1])
        self._num_cut = 0
        self._retry_at = float("inf")

    def check(self, now_s: float) -> bool:
        """Connect again where ZeroMQ has given up; return whether the aggregator refuses us."""
        refused = False
        while self._monitor.poll(0):
            message = recv_monitor_message(self._monitor)
            refused |= self._take(message["event"], message["value"], now_s)
        if now_s >= self._retry_at:
            self._retry_at = float("inf")
            self._reconnect()
        return refused

    def close(self) -> None:
        """Stop watching the socket."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def _take(self, event: int, value: int, now_s: float) -> bool:
        if event == _DONE:
            self._num_cut = 0
        elif event in _GIVEN_UP:
            self._retry_at = now_s + RETRY_S
            return True
        elif value != errno.EAGAIN:  # EAGAIN: the peer does not answer, since it is stopped or busy
            self._num_cut += 1
        return self._num_cut >= PATIENCE

    def _reconnect(self) -> None:
        try:
            self._socket.disconnect(self._endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.ENOENT:  # it is closed already
                raise
        self._socket.connect(self._endpoint)
