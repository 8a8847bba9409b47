"""The ingest socket: a ZeroMQ ROUTER, messages in, replies out. It knows peers, not runs."""

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
from gradwatch_server.ingest.zap import ZapAuthenticator, require_curve
from gradwatch_server.keys import Client, Keys
from gradwatch_wire import Envelope, ProtocolError, Record, Refuse, decode, encode, session_of
from gradwatch_wire.limits import MAX_RECORD_BYTES
from gradwatch_wire.names import DEFAULT_ENDPOINT

logger = logging.getLogger(__name__)

BATCH_MESSAGES: Final = 512
BATCH_BYTES: Final = 8 << 20

# Why each value: docs/protocol.md.
SOCKET_OPTIONS: Final = {
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
    """A decoded message.

    Args:
        peer: ROUTER's name of the connection; answers go there.
        envelope: What it says.
        raw: Its frame 1 as it came.
        client: Whose key it came with; None where no keys are asked for.
    """

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
        # Bound before the port is open, so that no handshake is left without an answer.
        self._authenticator = ZapAuthenticator(self._context, keys) if keys is not None else None
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in SOCKET_OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        if keys is not None:
            require_curve(self._socket, keys)
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
            message = self._check(client, peer, frames, now_s)
            if message is not None:
                yield message
                size += len(message.raw)
                if size > BATCH_BYTES:
                    return

    def _check(
        self, client: Client | None, peer: bytes, frames: list[bytes], now_s: float
    ) -> Message | None:
        """Return the message that *frames* are; None, and count why, if they are not taken."""
        if self._authenticator is not None and client is None:
            self.refuse("unknown key", "a message without a known key behind it", peer)
            return None
        if self._throttle.is_muted(peer, now_s):
            self.refuse("throttled", "a peer that sends nonsense is not heard for a while")
            return None
        try:
            return Message(peer, decode(frames), frames[1], client)
        except ProtocolError as error:
            # A client of another version is counted apart from what a port scanner sends.
            is_version = error.where == "message.frame 0"
            self.refuse("version" if is_version else "malformed", str(error), peer)
            if self._throttle.may_tell(peer, now_s):
                session = session_of(b"".join(frames[1:2]))
                self.reply(peer, session, Refuse(reason=str(error)))
            return None

    def _wait(self, timeout_ms: int) -> bool:
        """Wait for a message, and answer handshakes meanwhile; tell whether there is a message."""
        if self._authenticator is None:
            return bool(self._socket.poll(timeout_ms))
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._authenticator.socket, zmq.POLLIN)
        events = dict(poller.poll(timeout_ms))
        if self._authenticator.socket in events:
            self._authenticator.answer()
        return self._socket in events

    def _next(self) -> tuple[Client | None, list[bytes]]:
        """Return who sent the next message, and its frames.

        Raises:
            zmq.Again: If there is none.
        """
        if self._authenticator is None:
            return None, self._socket.recv_multipart(zmq.NOBLOCK)
        frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        return self._authenticator.client(frames[-1]), [frame.bytes for frame in frames]

    def refuse(self, kind: str, why: str, peer: bytes | None = None) -> None:
        """Count a message that is not taken, also against *peer*; each kind is logged once."""
        if not self.refused[kind]:
            logger.warning("refused on the ingest port (%s, told once): %s", kind, ascii(why))
        self.refused[kind] += 1
        if peer is not None:
            self._throttle.count_bad(peer, time.monotonic())

    def reply(self, peer: bytes, session: bytes, record: Record) -> bool:
        """Send a record to a peer; return False if it is gone or its queue is full."""
        frames = encode(Envelope(session=session, record=record))
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Close the port at once."""
        self._socket.close(linger=0)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()


def _wildcard(endpoint: str) -> str:
    """Write port 0, any free port, as ZeroMQ does."""
    return f"{endpoint[:-2]}:*" if endpoint.endswith(":0") else endpoint
