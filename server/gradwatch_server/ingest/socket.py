"""The ingest socket: ROUTER frames in, replies out. It knows bytes and peers, not runs."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import zmq

from gradwatch_server.errors import GradwatchError
from gradwatch_server.ingest.throttle import Throttle
from gradwatch_server.ingest.zap import ZapAuthenticator, lock
from gradwatch_server.keys import Client, Keys
from gradwatch_wire import Envelope, ProtocolError, Record, decode, encode
from gradwatch_wire.limits import MAX_RECORD_BYTES

logger = logging.getLogger(__name__)

BATCH_MESSAGES: Final = 512
BATCH_BYTES: Final = 8 << 20

# Why each value: docs/protocol.md.
_OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.RCVHWM: 200,
    zmq.SNDHWM: 200,
    zmq.BACKLOG: 4096,
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 6_000,
    zmq.HEARTBEAT_TTL: 6_000,
    zmq.MAXMSGSIZE: MAX_RECORD_BYTES,
    zmq.ROUTER_MANDATORY: 1,
}


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded message, where its answer goes, and who sent it, if that is asked."""

    peer: bytes
    envelope: Envelope
    raw: bytes
    client: Client | None = None


class Ingest:
    """A bound ROUTER. Only the thread that calls `receive` may call the rest."""

    def __init__(self, endpoint: str, keys: Keys | None = None) -> None:
        """Bind; with *keys* only for the clients that they name.

        Raises:
            GradwatchError: If the endpoint is malformed or the address cannot be had.
        """
        self.refused: Counter[str] = Counter()
        self._throttle = Throttle()
        self._context = zmq.Context()
        # Before the port is open: whoever knocks is asked who it is.
        self._zap = ZapAuthenticator(self._context, keys) if keys is not None else None
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        if keys is not None:
            lock(self._socket, keys)
        try:
            self._socket.bind(_wildcard(endpoint))
        except zmq.ZMQError as error:
            self.close()
            msg = (
                f"cannot bind the ingest endpoint {endpoint}: {error.strerror}; "
                "give a free one with --ingest, such as tcp://127.0.0.1:5555"
            )
            raise GradwatchError(msg) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self, timeout_ms: int) -> Iterator[Message]:
        """Wait for messages at most *timeout_ms*, then yield what is there, up to a batch."""
        if not self._wait(timeout_ms):
            return
        size, now_s = 0, time.monotonic()
        for _ in range(BATCH_MESSAGES):
            try:
                client, (peer, *frames) = self._next()
            except zmq.Again:
                return
            if self._zap is not None and client is None:
                self.refuse("unknown key", "a message without a known key behind it", peer)
                continue
            if self._throttle.is_muted(peer, now_s):
                self.refuse("throttled", "a peer that sends nonsense is not heard for a while")
                continue
            try:
                envelope = decode(frames)
            except ProtocolError as error:
                # Told apart, for a client of another version is no stray scanner.
                version = error.where == "message.frame 0"
                self.refuse("version" if version else "malformed", str(error), peer)
                continue
            yield Message(peer, envelope, frames[1], client)
            size += len(frames[1])
            if size > BATCH_BYTES:
                return

    def _wait(self, timeout_ms: int) -> bool:
        """Wait for a message, and let in whom we know; tell whether there is one."""
        if self._zap is None:
            return bool(self._socket.poll(timeout_ms))
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._zap.socket, zmq.POLLIN)
        events = dict(poller.poll(timeout_ms))
        if self._zap.socket in events:
            self._zap.answer()
        return self._socket in events

    def _next(self) -> tuple[Client | None, list[bytes]]:
        """Return who sent the next message, and its frames.

        Raises:
            zmq.Again: If there is none.
        """
        if self._zap is None:
            return None, self._socket.recv_multipart(zmq.NOBLOCK)
        frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        return self._zap.client(frames[-1]), [frame.bytes for frame in frames]

    def refuse(self, kind: str, why: str, peer: bytes | None = None) -> None:
        """Count what was not taken, also against *peer*; the log hears of each kind once."""
        if not self.refused[kind]:
            logger.warning("refused on the ingest port (%s, told once): %s", kind, ascii(why))
        self.refused[kind] += 1
        if peer is not None:
            self._throttle.strike(peer, time.monotonic())

    def reply(self, peer: bytes, session: bytes, record: Record) -> bool:
        """Send a record to a peer; return False when it is gone or does not read."""
        frames = encode(Envelope(session=session, record=record))
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Close the port at once."""
        self._socket.close(linger=0)
        if self._zap is not None:
            self._zap.close()
        self._context.term()


def _wildcard(endpoint: str) -> str:
    """Spell port 0, any free port, as ZeroMQ does."""
    return f"{endpoint[:-2]}:*" if endpoint.endswith(":0") else endpoint
