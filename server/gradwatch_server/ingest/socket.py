"""The ingest socket: a ZeroMQ ROUTER, messages in, replies out. It knows peers, not runs."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import Final

import zmq
from zmq.utils import z85

from gradwatch_server.budgets import BudgetUse
from gradwatch_server.errors import GradwatchError
from gradwatch_server.ingest.connections import Connections
from gradwatch_server.ingest.inbox import Inbox, bytes_of
from gradwatch_server.ingest.message import PackedRecord
from gradwatch_server.keys import Client, Keys
from gradwatch_wire import Envelope, Kind, Record, encode
from gradwatch_wire.codec import join
from gradwatch_wire.limits import MAX_RECORD_BYTES
from gradwatch_wire.names import DEFAULT_ENDPOINT

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
        self.socket.close()

    def _reply(self, request: list[bytes]) -> list[bytes] | None:
        if len(request) < 4:
            return None
        peer, _, _, number, *rest = request
        client = _find_client(self._clients, request[2], rest)
        if client is None:
            self._count_denied(rest)
            return [peer, b"", VERSION, number, b"400", b"unknown key", b"", b""]
        return [peer, b"", VERSION, number, b"200", b"OK", client.name.encode(), b""]

    def _count_denied(self, rest: list[bytes]) -> None:
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


BEAT: Final = bytes([Kind.BEAT])
"""Third byte of a message of that kind."""

GATHER_S: Final = 0.05
"""Seconds in which more BEATs may come where nothing else came: a round costs as much as many."""

LOOK_S: Final = 0.005
"""Seconds between two looks whether anything else has come."""

READ_MESSAGES: Final = 2_048
READ_BYTES: Final = 32 << 20
"""Largest read from the socket in one go: after it the messages have their turn."""

MAX_WAKES: Final = 4_096

DRAIN_S: Final = 0.1
"""Seconds between checks whether the engine is to stop."""

# Why each value: docs/protocol.md.
SOCKET_OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.RCVHWM: 0,
    zmq.SNDHWM: 200,
    zmq.BACKLOG: 4096,
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.MAXMSGSIZE: MAX_RECORD_BYTES,
    zmq.ROUTER_MANDATORY: 1,
}


class Ingest(Inbox):
    """A bound ROUTER."""

    def __init__(
        self, endpoint: str, keys: Keys | None = None, budget_use: BudgetUse | None = None
    ) -> None:
        """Bind; with *keys* only for the clients that they name.

        Raises:
            GradwatchError: If the endpoint is malformed or the address cannot be had.
        """
        super().__init__(budget_use or BudgetUse())
        self._context = zmq.Context()
        # Bound before the port is open, so that no handshake is left without an answer.
        self._authenticator = ZapAuthenticator(self._context, keys) if keys is not None else None
        self._socket = self._context.socket(zmq.ROUTER)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._wakes, self._waker = socket.socketpair()
        for end in (self._wakes, self._waker):
            end.setblocking(False)
        self._poller.register(self._wakes, zmq.POLLIN)
        if self._authenticator is not None:
            self._poller.register(self._authenticator.socket, zmq.POLLIN)
        for option, value in SOCKET_OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        if keys is not None:
            require_curve(self._socket, keys)
        limit = self._use.limits.ingest_connections
        self._connections = Connections(self._socket, self._context, limit)
        try:
            self._socket.bind(_wildcard(endpoint))
        except zmq.ZMQError as error:
            self.close()
            msg = (
                f"cannot bind the ingest endpoint {endpoint}: {error.strerror}; "
                f"give a free one with --ingest, such as {DEFAULT_ENDPOINT}"
            )
            raise GradwatchError(msg) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def wake(self) -> None:
        """End a wait for messages, from any thread."""
        with contextlib.suppress(OSError):  # it is full, so that the wait ends anyway, or closed
            self._waker.send(b"\0")

    def drain(self, seconds: float, stopping: threading.Event) -> None:
        """Read for so long, or until stopped, so that nothing piles up where nobody counts it."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and not stopping.is_set():
            self._read(max(1, round(1e3 * min(left_s, DRAIN_S))))
            self._report()

    def _read(self, timeout_ms: int) -> None:
        """Put what has arrived into the queue, after a wait for it of at most *timeout_ms*."""
        self._connections.check()
        if not self._wait(timeout_ms):
            return
        if self._take_in() and timeout_ms:
            self._gather(time.monotonic() + GATHER_S)

    def _gather(self, end_s: float) -> None:
        """Take in BEATs until a time, or until something comes that does not wait."""
        while time.monotonic() < end_s:
            time.sleep(LOOK_S)
            events = dict(self._poller.poll(0))
            if events.keys() - {self._socket} or (self._socket in events and not self._take_in()):
                return

    def _take_in(self) -> bool:
        """Put what is there into the queue; return whether nothing came but BEATs."""
        size, now_s, is_pressing = 0, time.monotonic(), False
        self._floods.expire(now_s)
        for _ in range(READ_MESSAGES):
            try:
                client, peer, raw = self._next()
            except zmq.Again:
                break
            is_pressing |= raw[2:3] != BEAT
            arrived = client, raw
            if self._may_wait(client, peer, now_s):
                size += self._put(peer, arrived, now_s)
            else:
                size += (num_bytes := bytes_of(arrived))
                self._floods.count(peer, num_bytes, now_s)
            if size > READ_BYTES:
                break
        return not is_pressing

    def _report(self) -> None:
        super()._report()
        connections = self._use["ingest_connections"]
        connections.used = self._connections.num_open
        connections.num_refused = self._connections.num_closed

    def _may_wait(self, client: Client | None, peer: bytes, now_s: float) -> bool:
        """Tell whether a message is to be kept until its turn; count why if it is not."""
        if self._authenticator is not None and client is None:
            self.refuse("unknown key", "a message without a known key behind it", peer)
            return False
        if self._throttle.is_muted(peer, now_s):
            self.refuse("throttled", "a peer that sends nonsense is not heard for a while")
            return False
        return True

    def _wait(self, timeout_ms: int) -> bool:
        """Wait for a message, and answer handshakes meanwhile; tell whether there is a message."""
        events = dict(self._poller.poll(timeout_ms))
        if self._wakes.fileno() in events:
            self._wakes.recv(MAX_WAKES)
        if self._authenticator is not None and self._authenticator.socket in events:
            self._authenticator.answer()
        return self._socket in events

    def _next(self) -> tuple[Client | None, bytes, bytes]:
        """Return who sent the next message, their peer, and the message.

        One of several frames, which no client of this protocol sends, comes as an empty message.

        Raises:
            zmq.Again: If there is none.
        """
        if self._authenticator is None and not self._floods:
            peer, *message = self._socket.recv_multipart(zmq.NOBLOCK)
            return None, peer, message[0] if len(message) == 1 else b""
        frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        peer = frames[0].bytes
        if peer in self._floods:
            self._cut(peer, frames[-1])
        client = None if self._authenticator is None else self._authenticator.client(frames[-1])
        return client, peer, frames[1].bytes if len(frames) == 2 else b""

    def _cut(self, peer: bytes, frame: zmq.Frame) -> None:
        """End the connection of a peer that floods, over which *frame* came."""
        try:
            self._socket.send_multipart([peer, b""], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EAGAIN:  # it has gone: another may have its file by now
                return
        self.refuse("flood", "a peer that sends on and on what there is no room for is cut off")
        self._floods.forget(peer)
        self._connections.cut(frame.get(zmq.SRCFD))

    def reply(self, peer: bytes, session: bytes, record: Record) -> bool:
        """Send a record to a peer; return False if it is gone or its queue is full."""
        return self._send(peer, encode(Envelope(session=session, record=record)))

    def forward(self, peer: bytes, session: bytes, packed: PackedRecord) -> bool:
        """Send a record that is packed already, as `reply` does."""
        return self._send(peer, join(packed.kind, session, 0, 0, 0, packed.body))

    def _send(self, peer: bytes, message: bytes) -> bool:
        try:
            self._socket.send(peer, zmq.NOBLOCK | zmq.SNDMORE)
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        self._connections.close()
        self._socket.close(linger=0)
        for end in (self._waker, self._wakes):
            end.close()
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()


def _wildcard(endpoint: str) -> str:
    """Write port 0, any free port, as ZeroMQ does."""
    return f"{endpoint[:-2]}:*" if endpoint.endswith(":0") else endpoint
