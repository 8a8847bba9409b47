"""The inbox: messages wait as they came, by peer, until it is the peer's turn (`fair_queue`).

Where they come from, and where answers go, a subclass knows: a socket, or a simulation.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gradwatch_server.budgets import BudgetUse
from gradwatch_server.ingest.credit import Credit
from gradwatch_server.ingest.fair_queue import FairQueue
from gradwatch_server.ingest.message import Arrived, Dropped, IngestMessage, PackedRecord
from gradwatch_server.keys import Client
from gradwatch_server.record_codec import decode
from gradwatch_wire import ProtocolError, Record, Refuse, session_of
from gradwatch_wire.codec import place_of

BURST: Final = 64
"""Bad messages that a peer may send at once."""

REFILL_PER_S: Final = 1.0
"""Bad messages that a peer may send for ever: a fault worth seeing, and no attack."""

TELL_EVERY_S: Final = 1.0
"""Least time between two answers that say what is wrong with a peer's messages."""

MUTE_S: Final = 5.0

MAX_MUTES: Final = 3
"""Times that a peer is muted for `MUTE_S`; the next time is for good."""

MAX_PEERS: Final = 4_096
"""Peers that are remembered; the one whose last bad message is the oldest is forgotten first."""

EVERY_S: Final = 1.0

ROOMS: Final = 4
"""A peer that sends so many times its room in vain within a second floods."""


class Floods:
    """Bytes that each peer sent in vain in the newest second."""

    def __init__(self, room_bytes: int) -> None:
        self._most_bytes = ROOMS * room_bytes
        self._bytes: Counter[bytes] = Counter()
        self._since_s = 0.0

    def count(self, peer: bytes, num_bytes: int, now_s: float, limit: int | None = None) -> None:
        """Count what a peer sent in vain.

        Args:
            limit: What it was granted, if it keeps to windows: it floods with twice of that.
        """
        self.expire(now_s)
        weight = 1.0 if limit is None else self._most_bytes / (2 * limit)
        self._bytes[peer] += round(num_bytes * weight)

    def expire(self, now_s: float) -> None:
        """Begin anew if a second has passed."""
        if now_s - self._since_s > EVERY_S:
            self._bytes.clear()
            self._since_s = now_s

    def __contains__(self, peer: bytes) -> bool:
        return self._bytes[peer] > self._most_bytes

    def __bool__(self) -> bool:
        """Tell whether any peer may flood: then the connection of each message has to be known."""
        return bool(self._bytes)

    def forget(self, peer: bytes) -> None:
        """Begin anew with a peer, whose connection was ended."""
        del self._bytes[peer]


@dataclass(slots=True)
class _FloodBucket:
    tokens: float
    at_s: float
    muted_until_s: float = 0.0
    num_mutes: int = 0
    told_s: float = float("-inf")


class Throttle:
    """Counts bad messages by peer. A peer that sends none costs one lookup in a dict."""

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, _FloodBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def is_muted(self, peer: bytes, now_s: float) -> bool:
        bucket = self._peers.get(peer)
        return bucket is not None and now_s < bucket.muted_until_s

    def may_tell(self, peer: bytes, now_s: float) -> bool:
        """Tell whether a peer whose bad message was counted is to be told of it now."""
        bucket = self._peers.get(peer)
        if bucket is None or now_s - bucket.told_s < TELL_EVERY_S:
            return False
        bucket.told_s = now_s
        return True

    def count_bad(self, peer: bytes, now_s: float) -> None:
        bucket = self._peers.setdefault(peer, _FloodBucket(BURST, now_s))
        self._peers.move_to_end(peer)
        bucket.tokens = min(BURST, bucket.tokens + (now_s - bucket.at_s) * REFILL_PER_S) - 1
        bucket.at_s = now_s
        if bucket.tokens < 0:
            bucket.tokens = BURST
            bucket.num_mutes += 1
            is_last = bucket.num_mutes > MAX_MUTES
            bucket.muted_until_s = float("inf") if is_last else now_s + MUTE_S
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)


logger = logging.getLogger(__name__)

BATCH_MESSAGES: Final = 512
BATCH_BYTES: Final = 4 << 20

PEER_SHARE: Final = 8
"""One connection may fill one part in so many of the queue."""

CONTROL_SHARE: Final = 8
"""Part of the queue that is not granted: messages that are no records wait there."""

CONTROL_BYTES: Final = 256 << 10
"""Bytes that such messages of one connection may take."""

MESSAGE_BYTES: Final = 500
"""Bytes that a message takes in memory beside its own."""

WORK_S: Final = 0.02
"""Expected cost of the messages of one batch, seconds."""

MAX_DROPPED: Final = 4_096
"""Sessions of which it is remembered that a message was dropped."""


class Inbox(ABC):
    """Messages that have arrived. Only the thread that calls `receive` may call the rest."""

    endpoint: str
    """Address at which clients attach."""

    def __init__(self, budget_use: BudgetUse) -> None:
        """Begin with nothing heard and nothing waiting."""
        self.refused: Counter[str] = Counter()
        self.dropped: dict[bytes, Dropped] = {}
        """Session to the last of its records for which there was no room, until somebody takes it
        from here: the first may be a copy of one that was taken."""
        self._throttle = Throttle()
        self._use = budget_use
        limits = budget_use.limits
        peer_bytes = limits.queue_bytes // PEER_SHARE
        self.max_in_flight_bytes = min(limits.in_flight_bytes, peer_bytes)
        self.credit = Credit(limits.queue_bytes - limits.queue_bytes // CONTROL_SHARE)
        self._floods = Floods(peer_bytes)
        self._queue: FairQueue[Arrived] = FairQueue(limits.queue_bytes, peer_bytes)
        self._seconds: Callable[[], float] = time.perf_counter
        self._batch_messages = BATCH_MESSAGES

    def receive(self, timeout_ms: int, work_s: float = WORK_S) -> Iterator[IngestMessage]:
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
            peer, (client, raw) = next(turn, (b"", (None, b"")))
            if not peer:
                return
            message = self._check(client, peer, raw, now_s)
            if message is not None:
                yield message
                size += len(message.raw)
            self._queue.charge(peer, self._seconds() - began_s)
            if size > BATCH_BYTES:
                return

    def charge(self, peer: bytes, seconds: float, messages: int = 1) -> None:
        """Charge a peer for its messages of the newest batch, or for those of its run."""
        self._queue.charge(peer, seconds, messages)

    def join(self, peer: bytes, run: str) -> None:
        """Say which run a peer sends for: its ranks wait for each other, and are served alike."""
        self._queue.join(peer, run)

    def discard(self, peer: bytes) -> None:
        """Drop what waits of a connection that is gone: its client sends all of it again."""
        self._queue.discard(peer)

    def has_room(self, peer: bytes) -> bool:
        """Tell whether a peer may be asked to send again what was dropped."""
        return self._queue.has_room(peer)

    def is_heard(self, peer: bytes) -> bool:
        return not self._queue.holds(peer)

    @property
    def has_waiting(self) -> bool:
        """True while a message waits for its turn."""
        return bool(self._queue)

    def listen(self, timeout_ms: int = 0) -> None:
        """Read what is there: in a long round too, nothing is to pile up where nobody counts it.

        Args:
            timeout_ms: How long to wait for a message if there is none, and none has its turn.
        """
        self._read(0 if self._queue else timeout_ms)

    def _put(self, peer: bytes, arrived: Arrived, now_s: float) -> int:
        """Let a message wait; return what it takes in memory."""
        num_bytes = bytes_of(arrived)
        limit = self.credit.limit_bytes(peer)
        if limit is not None:
            limit += CONTROL_BYTES
        for whose, (_, dropped) in self._queue.put(peer, arrived, num_bytes, limit):
            if whose == peer:
                self._floods.count(peer, num_bytes, now_s, limit)
            session, seq = place_of(dropped)
            if seq:
                self._record_dropped(session, Dropped(whose, seq))
        return num_bytes

    def _record_dropped(self, session: bytes, dropped: Dropped) -> None:
        """Keep of a session the last record for which there was no room."""
        before = self.dropped.get(session)
        if before is None and len(self.dropped) >= MAX_DROPPED:
            return
        if before is None or dropped.seq > before.seq:
            self.dropped[session] = dropped

    def _report(self) -> None:
        use, queue = self._use["queue_bytes"], self._queue
        use.used, use.num_refused = queue.num_bytes, queue.num_dropped

    def _check(
        self, client: Client | None, peer: bytes, raw: bytes, now_s: float
    ) -> IngestMessage | None:
        """Decode a message; return None, and count why, if it cannot be."""
        if self._throttle.is_muted(peer, now_s):  # since it was put there
            self.refuse("throttled", "a peer that sends nonsense is not heard for a while")
            return None
        try:
            return IngestMessage(peer, decode(raw), raw, client)
        except ProtocolError as error:
            # A client of another version is counted apart from what a port scanner sends.
            is_version = error.where == "message.version"
            self.refuse("version" if is_version else "malformed", str(error), peer)
            if self._throttle.may_tell(peer, now_s):
                self.reply(peer, session_of(raw), Refuse(reason=str(error)))
            return None

    def refuse(self, kind: str, reason: str, peer: bytes | None = None) -> None:
        """Count a message that is not taken, also against *peer*; each kind is logged once."""
        if not self.refused[kind]:
            logger.warning("refused on the ingest port (%s, told once): %s", kind, ascii(reason))
        self.refused[kind] += 1
        if peer is not None:
            self._throttle.count_bad(peer, time.monotonic())

    @abstractmethod
    def _read(self, timeout_ms: int) -> None:
        """Put what has arrived into the queue, after a wait for it of at most *timeout_ms*."""

    @abstractmethod
    def wake(self) -> None:
        """End a wait for messages, from any thread."""

    @abstractmethod
    def drain(self, seconds: float, stopping: threading.Event) -> None:
        """Read for so long, or until stopped, so that nothing piles up where nobody counts it."""

    @abstractmethod
    def reply(self, peer: bytes, session: bytes, record: Record) -> bool:
        """Send a record to a peer; return False if it is gone or its queue is full."""

    @abstractmethod
    def forward(self, peer: bytes, session: bytes, packed: PackedRecord) -> bool:
        """Send a record that is packed already, as `reply` does."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""


def bytes_of(arrived: Arrived) -> int:
    return len(arrived[1]) + MESSAGE_BYTES
