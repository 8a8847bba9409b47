"""The ingest socket: a ZeroMQ ROUTER, messages in, replies out. It knows peers, not runs.

What arrives waits as it came, by peer, until it is the peer's turn (`fair_queue`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import zmq

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.errors import GradwatchError
from gradwatch_server.ingest.connections import Connections
from gradwatch_server.ingest.fair_queue import FairQueue
from gradwatch_server.ingest.floods import Floods
from gradwatch_server.ingest.throttle import Throttle
from gradwatch_server.ingest.zap import ZapAuthenticator, require_curve
from gradwatch_server.keys import Client, Keys
from gradwatch_wire import Envelope, Kind, ProtocolError, Record, Refuse, decode, encode, session_of
from gradwatch_wire.codec import join, place_of
from gradwatch_wire.limits import MAX_RECORD_BYTES
from gradwatch_wire.names import DEFAULT_ENDPOINT

logger = logging.getLogger(__name__)

BATCH_MESSAGES: Final = 512
BATCH_BYTES: Final = 4 << 20

READ_MESSAGES: Final = 2_048
READ_BYTES: Final = 32 << 20
"""What is read from the socket in one go: what is there has to be heard too."""

MESSAGE_BYTES: Final = 500
"""What a message takes in memory beside its frames."""

WORK_S: Final = 0.02
"""What the messages of one batch may be expected to cost."""

DRAIN_S: Final = 0.1
"""How long it takes to see that one is to stop."""

MAX_DROPPED: Final = 4_096
"""Sessions of which it is remembered that a message was dropped."""

# Why each value: docs/protocol.md.
SOCKET_OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.RCVHWM: 0,
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


Arrived: TypeAlias = tuple[Client | None, list[bytes]]
"""Who sent a message, and its frames, not looked into."""


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """A record for several sessions, packed once.

    Args:
        kind: Its kind.
        body: Its body, packed.
    """

    kind: Kind
    body: bytes


@dataclass(frozen=True, slots=True)
class Dropped:
    """A record for which there was no room.

    Args:
        peer: Who sent it.
        seq: Its number.
    """

    peer: bytes
    seq: int


class Ingest:
    """A bound ROUTER. Only the thread that calls `receive` may call the rest."""

    def __init__(
        self, endpoint: str, keys: Keys | None = None, budget_use: BudgetUse | None = None
    ) -> None:
        """Bind; with *keys* only for the clients that they name.

        Raises:
            GradwatchError: If the endpoint is malformed or the address cannot be had.
        """
        self._begin(budget_use or BudgetUse())
        self._context = zmq.Context()
        # Bound before the port is open, so that no handshake is left without an answer.
        self._authenticator = ZapAuthenticator(self._context, keys) if keys is not None else None
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in SOCKET_OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        if keys is not None:
            require_curve(self._socket, keys)
        most = self._use.limits.ingest_connections
        self._connections = Connections(self._socket, self._context, most)
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

    def _begin(self, budget_use: BudgetUse) -> None:
        """Begin with nothing heard and nothing waiting."""
        self.refused: Counter[str] = Counter()
        self.dropped: dict[bytes, Dropped] = {}
        """Session to the first of its records for which there was no room, until somebody takes it
        from here."""
        self._throttle = Throttle()
        self._use = budget_use
        limits = budget_use.limits
        self._floods = Floods(limits.queue_bytes_per_peer)
        self._queue: FairQueue[Arrived] = FairQueue(limits.queue_bytes, limits.queue_bytes_per_peer)
        self._seconds: Callable[[], float] = time.perf_counter
        self._batch_messages = BATCH_MESSAGES

    def receive(self, timeout_ms: int, work_s: float = WORK_S) -> Iterator[Message]:
        """Read what has arrived, then yield a batch: of each peer in turn, those of each in order.

        Args:
            timeout_ms: How long to wait for a message if there is none.
            work_s: What the batch may be expected to cost; a message costs the time until the next
                is asked for, and what `charge` says.
        """
        self._read(0 if self._queue else timeout_ms)
        self._report()
        size, now_s = 0, time.monotonic()
        turn = self._queue.turn(work_s)
        for _ in range(self._batch_messages):
            began_s = self._seconds()
            peer, (client, frames) = next(turn, (b"", (None, [])))
            if not peer:
                return
            message = self._check(client, peer, frames, now_s)
            if message is not None:
                yield message
                size += len(message.raw)
            self._queue.charge(peer, self._seconds() - began_s)
            if size > BATCH_BYTES:
                return

    def charge(self, peer: bytes, seconds: float) -> None:
        """Say what was spent on a peer's messages of the newest batch after they were taken."""
        self._queue.charge(peer, seconds)

    def join(self, peer: bytes, run: str) -> None:
        """Say which run a peer sends for: its ranks wait for each other, and are served alike."""
        self._queue.join(peer, run)

    def has_room(self, peer: bytes) -> bool:
        """Tell whether a peer may be asked to send again what was dropped."""
        return self._queue.has_room(peer)

    def drain(self, seconds: float, stopping: threading.Event) -> None:
        """Read for so long, or until stopped, so that nothing piles up where nobody counts it."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and not stopping.is_set():
            self._read(max(1, round(1e3 * min(left_s, DRAIN_S))))
            self._report()

    def listen(self) -> None:
        """Read what is there: in a long round too, nothing is to pile up where nobody counts it."""
        self._read(0)

    def _read(self, timeout_ms: int) -> None:
        """Put what has arrived into the queue, after a wait for it of at most *timeout_ms*."""
        self._connections.look()
        if not self._wait(timeout_ms):
            return
        size, now_s = 0, time.monotonic()
        self._floods.look(now_s)
        for _ in range(READ_MESSAGES):
            try:
                client, (peer, *frames) = self._next()
            except zmq.Again:
                break
            num_bytes = sum(map(len, frames)) + MESSAGE_BYTES
            if self._may_wait(client, peer, now_s):
                self._put(peer, (client, frames), num_bytes, now_s)
            else:
                self._floods.count(peer, num_bytes, now_s)
            size += num_bytes
            if size > READ_BYTES:
                break

    def _put(self, peer: bytes, arrived: Arrived, num_bytes: int, now_s: float) -> None:
        for whose, (_, frames) in self._queue.put(peer, arrived, num_bytes):
            if whose == peer:
                self._floods.count(peer, num_bytes, now_s)
            session, seq = place_of(b"".join(frames[1:2]))
            known = self.dropped.get(session)
            if seq and (len(self.dropped) < MAX_DROPPED or known is not None):
                seq = seq if known is None else min(seq, known.seq)
                self.dropped[session] = Dropped(whose, seq)

    def _report(self) -> None:
        """Say what is used."""
        in_all, of_peer = self._use["queue_bytes"], self._use["queue_bytes_per_peer"]
        in_all.used, in_all.num_refused = self._queue.num_bytes, self._queue.num_dropped
        of_peer.used, of_peer.num_refused = self._queue.most_bytes, self._queue.num_dropped_of_peer
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

    def _check(
        self, client: Client | None, peer: bytes, frames: list[bytes], now_s: float
    ) -> Message | None:
        """Return the message that *frames* are; None, and count why, if they are none."""
        if self._throttle.is_muted(peer, now_s):  # since it was put there
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
        if self._authenticator is None and not self._floods:
            return None, self._socket.recv_multipart(zmq.NOBLOCK)
        frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        peer = frames[0].bytes
        if peer in self._floods:
            self._cut(peer, frames[-1])
        client = None if self._authenticator is None else self._authenticator.client(frames[-1])
        return client, [frame.bytes for frame in frames]

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

    def refuse(self, kind: str, why: str, peer: bytes | None = None) -> None:
        """Count a message that is not taken, also against *peer*; each kind is logged once."""
        if not self.refused[kind]:
            logger.warning("refused on the ingest port (%s, told once): %s", kind, ascii(why))
        self.refused[kind] += 1
        if peer is not None:
            self._throttle.count_bad(peer, time.monotonic())

    def reply(self, peer: bytes, session: bytes, record: Record) -> bool:
        """Send a record to a peer; return False if it is gone or its queue is full."""
        return self._send(peer, encode(Envelope(session=session, record=record)))

    def forward(self, peer: bytes, session: bytes, packed: PackedRecord) -> bool:
        """Send a record that is packed already, as `reply` does."""
        return self._send(peer, join(packed.kind, session, 0, 0, 0, packed.body))

    def _send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Close the port at once."""
        self._connections.close()
        self._socket.close(linger=0)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()


def _wildcard(endpoint: str) -> str:
    """Write port 0, any free port, as ZeroMQ does."""
    return f"{endpoint[:-2]}:*" if endpoint.endswith(":0") else endpoint
