"""Watches the handshakes of the sender's socket.

ZeroMQ does not report that one failed, and after some failures it never tries again.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

RETRY_S: Final = 3.0
PATIENCE: Final = 3
"""Connections in a row that end during the handshake. One alone is a restart of the other side."""

SILENCE_S: Final = 3.0
"""A connection without a handshake for so long: the other side may speak something else."""

_GIVEN_UP: Final = (zmq.Event.HANDSHAKE_FAILED_PROTOCOL, zmq.Event.HANDSHAKE_FAILED_AUTH)
_CUT: Final = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
_DONE: Final = zmq.Event.HANDSHAKE_SUCCEEDED
_CONNECTED: Final = zmq.Event.CONNECTED
_DISCONNECTED: Final = zmq.Event.DISCONNECTED
_RETRIED: Final = zmq.Event.CONNECT_RETRIED
_EVENTS: Final = _DONE | _CUT | _CONNECTED | _DISCONNECTED | _RETRIED | _GIVEN_UP[0] | _GIVEN_UP[1]


class Doubt(Enum):
    """Why the other side may be no aggregator, or one that does not let us in."""

    CUT = "cut"  # it ends the handshakes
    SILENT = "silent"  # it takes the connection, and does not answer


class Handshakes:
    """Used by the thread that owns the socket, and closed before the context ends.

    Attributes:
        is_connected: Whether anything has ever taken a connection.
        has_succeeded: Whether a handshake ever succeeded: the other side is a ZeroMQ socket.
        is_lost: Whether there is no connection, as the last one ended or the last attempt failed,
            or the other side ends the handshakes.
    """

    def __init__(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        self.is_connected = False
        self.has_succeeded = False
        self.is_lost = False
        self._socket = socket
        self._endpoint = endpoint
        self._monitor = socket.get_monitor_socket(_EVENTS)
        self._num_cut = 0
        self._begun_s: float | None = None  # of a handshake that has not ended
        self._retry_at = float("inf")

    def check(self, now_s: float) -> Doubt | None:
        """Connect again where ZeroMQ has given up; return what is doubtful, if anything is."""
        is_cut = False
        while self._monitor.poll(0):
            message = recv_monitor_message(self._monitor)
            is_cut |= self._take(message["event"], message["value"], now_s)
        if now_s >= self._retry_at:
            self._retry_at = float("inf")
            self._reconnect()
        if is_cut:
            return Doubt.CUT
        is_silent = self._begun_s is not None and now_s - self._begun_s > SILENCE_S
        return Doubt.SILENT if is_silent else None

    def close(self) -> None:
        """Stop watching the socket."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def _take(self, event: int, value: int, now_s: float) -> bool:
        if event == _RETRIED:  # comes when an attempt failed, and when a connection ended
            self.is_lost = True
            return False
        if event == _CONNECTED:
            self.is_connected, self._begun_s = True, now_s
            self._retry_at = float("inf")  # ZeroMQ has not given up after all
            self.is_lost = False
            return False
        is_cut = self._ends(event, value, now_s)
        self.is_lost |= is_cut
        return is_cut

    def _ends(self, event: int, value: int, now_s: float) -> bool:
        """Tell whether an event says that the other side ends the handshakes."""
        is_unfinished = self._begun_s is not None
        self._begun_s = None
        if event == _DONE:
            self.has_succeeded = True
            self._num_cut = 0
        elif event in _GIVEN_UP or (event == _DISCONNECTED and is_unfinished):
            # A socket of another kind, a PUB say, ends it without a word.
            self._retry_at = now_s + RETRY_S
            return True
        elif event == _CUT and value != errno.EAGAIN:  # EAGAIN: it does not answer; see SILENCE_S
            self._num_cut += 1
        return self._num_cut >= PATIENCE

    def _reconnect(self) -> None:
        try:
            self._socket.disconnect(self._endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.ENOENT:  # it is closed already
                raise
        self._socket.connect(self._endpoint)
