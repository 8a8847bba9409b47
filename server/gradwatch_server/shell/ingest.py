"""The ingest socket: ROUTER frames in, replies out. It knows bytes and peers, not runs."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import zmq

from gradwatch_server.shell.errors import GradwatchError
from gradwatch_wire import Envelope, ProtocolError, Record, decode, encode
from gradwatch_wire.limits import MAX_RECORD_BYTES

logger = logging.getLogger(__name__)

PORT: Final = re.compile(r"[0-9]{1,5}")

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
    """A decoded message and where its answer goes."""

    peer: bytes
    envelope: Envelope
    raw: bytes


class Ingest:
    """A bound ROUTER. Only the thread that calls `receive` may call the rest."""

    def __init__(self, endpoint: str) -> None:
        """Bind.

        Raises:
            GradwatchError: If the endpoint is malformed or the address cannot be had.
        """
        self.refused: Counter[str] = Counter()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        try:
            self._socket.bind(_wildcard(endpoint))
        except zmq.ZMQError as error:
            self._socket.close()
            self._context.term()
            msg = (
                f"cannot bind the ingest endpoint {endpoint}: {error.strerror}; "
                "give a free one with --ingest, such as tcp://127.0.0.1:5555"
            )
            raise GradwatchError(msg) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self, timeout_ms: int) -> Iterator[Message]:
        """Wait for messages at most *timeout_ms*, then yield what is there, up to a batch."""
        if not self._socket.poll(timeout_ms):
            return
        size = 0
        for _ in range(BATCH_MESSAGES):
            try:
                peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                envelope = decode(frames)
            except ProtocolError as error:
                # Told apart, for a client of another version is no stray scanner.
                version = error.where == "message.frame 0"
                self.refuse("version" if version else "malformed", str(error))
                continue
            yield Message(peer, envelope, frames[1])
            size += len(frames[1])
            if size > BATCH_BYTES:
                return

    def refuse(self, kind: str, why: str) -> None:
        """Count what was not taken; the log hears of each kind once."""
        if not self.refused[kind]:
            logger.warning("refused on the ingest port (%s, told once): %s", kind, ascii(why))
        self.refused[kind] += 1

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
        self._context.term()


def _wildcard(endpoint: str) -> str:
    """Spell port 0, any free port, as ZeroMQ does."""
    return f"{endpoint[:-2]}:*" if endpoint.endswith(":0") else endpoint


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches *host*."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def endpoint_host(endpoint: str) -> str | None:
    """Return the host of a tcp endpoint, None for `ipc://`.

    Raises:
        GradwatchError: If it is neither.
    """
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc" and address:
        return None
    host, _, port = address.rpartition(":")
    if scheme == "tcp" and host and (port == "*" or (PORT.fullmatch(port) and int(port) < 65536)):
        return host
    msg = f"ingest endpoint {endpoint!r} is not like tcp://127.0.0.1:5555 or ipc:///path"
    raise GradwatchError(msg)
