"""What a partition's engine reads instead of a socket: gateways put it here, near or far."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.cluster.messages.parcels import Answer, Parcel
from gradwatch_server.cluster.messages.turns import Turn, Turns
from gradwatch_server.ingest.inbox import MESSAGE_BYTES, WORK_S, Inbox, note_dropped
from gradwatch_server.ingest.message import Dropped, Message, PackedRecord
from gradwatch_wire import Ack, Envelope, Record, Welcome, encode
from gradwatch_wire.codec import join, place_of

MAX_GONE: Final = 65_536
"""Connections that are known to be gone; the one that went first is forgotten first."""

DRAIN_S: Final = 0.1
"""How long it takes to see that one is to stop."""

_SEPARATOR: Final = b"/"


class Postman(Protocol):
    """Takes answers to the gateways, from the engine's thread."""

    def is_live(self, node: str) -> bool:
        """Tell whether a node has a lease, as far as is known."""

    def post(self, node: str, answer: Answer) -> None:
        """Send an answer with the next `flush`, or before it."""

    def flush(self) -> None:
        """Send all that was posted."""


class ClusterInbox(Inbox):
    """The messages to one partition. A peer is one connection to one node.

    Args:
        endpoint: Where clients attach to this node.
        budget_use: What peers may use.
        postman: What takes the answers.
        turns: Those of all engines of the process.
    """

    def __init__(
        self, endpoint: str, budget_use: BudgetUse, postman: Postman, turns: Turns
    ) -> None:
        super().__init__(budget_use)
        self.endpoint = endpoint
        self._postman = postman
        self._turn = Turn(turns)
        self._is_woken = False
        self._max_bytes = budget_use.limits.queue_bytes
        self._changed = threading.Condition()
        self._arrived: deque[tuple[bytes, Parcel]] = deque()
        self._arrived_bytes = 0
        self._overflowed: dict[bytes, Dropped] = {}
        self._gone: OrderedDict[bytes, None] = OrderedDict()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the messages that wait to be read."""
        return self._arrived_bytes

    def put(self, node: str, parcels: Sequence[Parcel]) -> None:
        """Take messages that came by the gateway of a node; from any thread."""
        prefix = node.encode() + _SEPARATOR
        with self._changed:
            for parcel in parcels:
                if self._arrived_bytes > self._max_bytes:
                    self._overflow(prefix + parcel.peer, parcel)
                    continue
                self._arrived.append((prefix + parcel.peer, parcel))
                self._arrived_bytes += parcel.num_bytes + MESSAGE_BYTES
            self._changed.notify()

    def _overflow(self, peer: bytes, parcel: Parcel) -> None:
        session, seq = place_of(b"".join(parcel.frames[1:2]))
        if seq:
            note_dropped(self._overflowed, session, Dropped(peer, seq))

    def receive(self, timeout_ms: int, work_s: float = WORK_S) -> Iterator[Message]:
        """Wait for messages, and then for the turn: what comes meanwhile is in the same batch."""
        self.rest()
        self._postman.flush()
        if not self._queue:
            self._wait(timeout_ms)
        if self._queue or self._arrived:
            self.work()
        yield from super().receive(0, work_s)

    def work(self) -> None:
        """Wait until no other engine of the node works."""
        self._turn.begin()

    def rest(self) -> None:
        """Let other engines work."""
        self._turn.end()

    def wake(self) -> None:
        """End a wait for messages, or the next one; from any thread."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def _wait(self, timeout_ms: int) -> None:
        with self._changed:
            if not (self._arrived or self._is_woken) and timeout_ms:
                self._changed.wait(timeout_ms / 1e3)
            self._is_woken = False

    def _read(self, timeout_ms: int) -> None:
        self._postman.flush()
        if timeout_ms:
            self._wait(timeout_ms)
        with self._changed:
            arrived, self._arrived = self._arrived, deque()
            self._arrived_bytes = 0
            overflowed, self._overflowed = self._overflowed, {}
        now_s = time.monotonic()
        for peer, parcel in arrived:
            if not parcel.frames:
                self._note_gone(peer)
            elif self._throttle.is_muted(peer, now_s):
                self.refuse("throttled", "a peer that sends nonsense is not heard for a while")
            else:
                self._gone.pop(peer, None)
                self._put(peer, (parcel.client, parcel.frames), now_s)
        for session, dropped in overflowed.items():
            note_dropped(self.dropped, session, dropped)

    def _note_gone(self, peer: bytes) -> None:
        self._gone[peer] = None
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)

    def drain(self, seconds: float, stopping: threading.Event) -> None:
        """Read for so long, or until stopped, so that nothing piles up where nobody counts it."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and not stopping.is_set():
            self._read(max(1, round(1e3 * min(left_s, DRAIN_S))))
            self._report()

    def reply(self, peer: bytes, session: bytes, record: Record) -> bool:
        """Send a record to a peer; return False if it is known to be gone."""
        acked = record.acked if isinstance(record, Ack | Welcome) else None
        frames = encode(Envelope(session=session, record=record))
        return self._post(peer, session, acked, frames)

    def forward(self, peer: bytes, session: bytes, packed: PackedRecord) -> bool:
        """Send a record that is packed already, as `reply` does."""
        frames = join(packed.kind, session, 0, 0, 0, packed.body)
        return self._post(peer, session, None, frames)

    def _post(self, peer: bytes, session: bytes, acked: int | None, frames: list[bytes]) -> bool:
        node, _, connection = peer.partition(_SEPARATOR)
        if peer in self._gone or not self._postman.is_live(node.decode()):
            return False
        self._postman.post(node.decode(), Answer(connection, session, acked, frames))
        return True

    def close(self) -> None:
        """Send what was answered."""
        self._postman.flush()
