"""Authentication at the ingest port: ZeroMQ's protocol for it (ZAP, RFC 27).

ZeroMQ asks about each handshake. The thread that owns the ingest socket answers, so that there is
no second thread whose death nobody would notice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import zmq
from zmq.utils import z85

from gradwatch_server.keys import Client, Keys

logger = logging.getLogger(__name__)

ENDPOINT: Final = "inproc://zeromq.zap.01"
VERSION: Final = b"1.0"
DOMAIN: Final = b"gradwatch"
MAX_ANSWERS: Final = 256
"""Handshakes answered in one go: the messages of those who are connected must not wait for more."""

USER_ID: Final = "User-Id"
"""The property of each message that holds the name we gave its connection in the handshake."""


class ZapAuthenticator:
    """Lets in clients with a known key. Close it after the sockets that depend on it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        self.num_denied = 0
        self._clients = keys.clients
        self._by_name = {client.name: client for client in keys.clients.values()}
        # A ROUTER, not the usual REP, which must answer a request before it can take the next one.
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)

    def answer(self) -> None:
        """Answer the handshakes that wait."""
        for _ in range(MAX_ANSWERS):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply = self._reply(request)
            if reply is not None:
                self.socket.send_multipart(reply, zmq.NOBLOCK)

    def client(self, frame: zmq.Frame) -> Client | None:
        """Return the client that sent a frame, None if it is not known."""
        try:
            name = frame.get(USER_ID)
        except zmq.ZMQError:  # it came without a handshake
            return None
        return self._by_name.get(str(name))

    def close(self) -> None:
        """Stop answering; from then on nobody is let in."""
        self.socket.close()

    def _reply(self, request: list[bytes]) -> list[bytes] | None:
        if len(request) < 4:
            return None
        peer, _, _, number, *rest = request
        client = _find_client(self._clients, request[2], rest)
        if client is None:
            self._note_denied(rest)
            return [peer, b"", VERSION, number, b"400", b"unknown key", b"", b""]
        return [peer, b"", VERSION, number, b"200", b"OK", client.name.encode(), b""]

    def _note_denied(self, rest: list[bytes]) -> None:
        """Count a handshake that is not let in; the first is logged, with its address."""
        if not self.num_denied:
            address = ascii(rest[1][:64].decode("utf-8", "replace")) if len(rest) > 1 else "?"
            logger.warning("refused on the ingest port (unknown key, told once): %s", address)
        self.num_denied += 1


def _find_client(clients: Mapping[str, Client], version: bytes, rest: list[bytes]) -> Client | None:
    """Return the client whose key is asked about; None for any other request."""
    if version != VERSION or len(rest) != 5:
        return None
    _domain, _address, _identity, mechanism, key = rest
    if mechanism != b"CURVE" or len(key) != 32:
        return None
    return clients.get(z85.encode(key).decode("ascii"))


def require_curve(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Make a socket, before it is bound, take CURVE only and ask about every key.

    Without ENFORCE_DOMAIN ZeroMQ would let in any key while nobody answers.
    """
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
