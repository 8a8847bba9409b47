"""A fair queue: messages wait by peer, and the peer that cost least so far has its turn first.

What a message costs is known once it was dealt with, so a peer's next one is expected to cost what
its last ones did. Peers of one group, the ranks of a run, pay what their messages cost on average:
the rank whose record closes the frame of all, or that was interrupted, must not fall behind for it.
It knows neither sockets nor clocks: who takes a message says what it cost. Typical use::

    dropped = queue.put(peer, message, len(message))
    for peer, message in queue.turn(work_s=0.02):
        queue.charge(peer, seconds_spent_on(message))
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

FIRST_S: Final = 0.0005
"""Expected cost of a peer's first message, seconds."""

DECAY: Final = 0.9
"""Share of an expectation that is left after a message that cost less."""

SLOW_DECAY: Final = 0.99
"""The same share for a group of peers: all of its peers have one expectation."""

HEAD_START_S: Final = 0.05
"""Time that all peers that were idle may be ahead of a waiting one, together: a peer that sends now
and then is served before one that always does, and thousands of them cannot hold that one up."""

MAX_SKIPPED: Final = 64
"""Peers too dear for what is left of a turn, after which nobody cheaper is looked for."""

MAX_IDLE: Final = 4_096
"""Peers without messages that are remembered."""


@dataclass(slots=True, weakref_slot=True)
class _CostGroup:
    """Peers whose messages are taken to cost the same."""

    num_peers: int = 0
    usual_s: float = FIRST_S  # what a message costs on average
    expected_s: float = FIRST_S  # what the next one may cost
    # Since the last turn began:
    spent_s: float = 0.0
    largest_s: float = 0.0
    num_taken: int = 0

    def settle(self, work_s: float) -> None:
        """Learn from what the last turn cost."""
        mean_s, rest = self.spent_s / self.num_taken, DECAY**self.num_taken
        old = SLOW_DECAY**self.num_taken if self.num_peers > 1 else 0.0
        self.usual_s = mean_s + (self.usual_s - mean_s) * old
        # One that fills a turn alone is to be expected again, however cheap the others were.
        seen_s = self.largest_s if self.largest_s > work_s / 2 else self.usual_s
        self.expected_s = max(seen_s, self.expected_s * rest)
        self.spent_s = self.largest_s = 0.0
        self.num_taken = 0


@dataclass(slots=True)
class _Peer(Generic[T]):
    group: _CostGroup
    served_s: float  # the later the more it cost
    waiting: deque[tuple[T, int]] = field(default_factory=deque)
    num_bytes: int = 0
    # Since the last turn began:
    planned_s: float = 0.0
    num_taken: int = 0


class FairQueue(Generic[T]):
    """Messages of many peers, bounded in bytes, those of each in the order in which they came."""

    def __init__(self, max_bytes: int, max_bytes_per_peer: int) -> None:
        self.num_bytes = 0
        self.num_dropped = 0
        """Messages for which there was no room, since the start."""
        self._max_bytes = max_bytes
        self._max_bytes_per_peer = max_bytes_per_peer
        self._peers: dict[bytes, _Peer[T]] = {}
        self._waiting: dict[bytes, _Peer[T]] = {}  # those with messages
        self._served: dict[bytes, _Peer[T]] = {}  # those that had a turn
        self._groups: WeakValueDictionary[str, _CostGroup] = WeakValueDictionary()
        self._floor_s = 0.0  # what the one served least has had, of those that wait

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def has_room(self, peer: bytes) -> bool:
        """Tell whether half of what a peer may have here is free."""
        queue = self._waiting.get(peer)
        return queue is None or queue.num_bytes <= self._max_bytes_per_peer // 2

    def holds(self, peer: bytes) -> bool:
        return peer in self._waiting

    def put(
        self, peer: bytes, message: T, num_bytes: int, limit: int | None = None
    ) -> list[tuple[bytes, T]]:
        """Add a message; return what is dropped for it, which may be itself.

        Where there is no room in all, the newest of the peer go that has most.

        Args:
            limit: Bytes that the peer may have here, if not as many as any other.
        """
        state = self._peers.get(peer)
        limit = self._max_bytes_per_peer if limit is None else limit
        if state is not None and state.num_bytes + num_bytes > limit:
            self.num_dropped += 1
            return [(peer, message)]
        if state is None:
            state = self._peers[peer] = _Peer(_CostGroup(num_peers=1), self._floor_s)
        if not state.waiting:
            head_start_s = HEAD_START_S / (1 + len(self._waiting))
            state.served_s = max(state.served_s, self._floor_s - head_start_s)
            self._waiting[peer] = state
        state.waiting.append((message, num_bytes))
        self._count(state, num_bytes)
        return self._drop() if self.num_bytes > self._max_bytes else []

    def discard(self, peer: bytes) -> None:
        """Drop all that waits of a peer that is gone."""
        queue = self._waiting.pop(peer, None)
        if queue is not None:
            self._count(queue, -queue.num_bytes)
            queue.waiting.clear()

    def _drop(self) -> list[tuple[bytes, T]]:
        dropped = []
        while self.num_bytes > self._max_bytes:
            peer, queue = max(self._waiting.items(), key=lambda item: item[1].num_bytes)
            message, num_bytes = queue.waiting.pop()
            self._count(queue, -num_bytes)
            dropped.append((peer, message))
            if not queue.waiting:
                del self._waiting[peer]
        self.num_dropped += len(dropped)
        return dropped

    def _count(self, peer: _Peer[T], num_bytes: int) -> None:
        peer.num_bytes += num_bytes
        self.num_bytes += num_bytes

    def turn(self, work_s: float) -> Iterator[tuple[bytes, T]]:
        """Yield messages that are expected to cost so much together, one at least.

        One that is expected to cost more than that alone counts as half of it: what is cheap comes
        with it, what is as dear waits.
        """
        self._settle(work_s)
        order = [
            (queue.served_s, queue.group.expected_s, peer) for peer, queue in self._waiting.items()
        ]
        heapq.heapify(order)
        if order:
            self._floor_s = max(self._floor_s, order[0][0])
        planned_s = 0.0
        num_skipped = 0
        while order and planned_s < work_s and num_skipped < MAX_SKIPPED:
            _, _, peer = heapq.heappop(order)
            queue = self._waiting.get(peer)
            if queue is None:  # its connection is gone since the turn began
                continue
            expected_s = queue.group.expected_s
            counted_s = min(expected_s, work_s / 2)
            if planned_s + counted_s > work_s or (planned_s and expected_s > work_s):
                num_skipped += 1
                continue
            planned_s += counted_s
            yield peer, self._take(peer, queue)
            if queue.waiting:
                heapq.heappush(order, (queue.served_s, queue.group.expected_s, peer))

    def _take(self, peer: bytes, taken: _Peer[T]) -> T:
        message, num_bytes = taken.waiting.popleft()
        self._count(taken, -num_bytes)
        if not taken.waiting:
            del self._waiting[peer]
        taken.served_s += taken.group.expected_s
        taken.planned_s += taken.group.expected_s
        taken.num_taken += 1
        taken.group.num_taken += 1
        self._served[peer] = taken
        return message

    def charge(self, peer: bytes, seconds: float, messages: int = 1) -> None:
        """Charge the group of a peer for messages that were taken since the last turn began.

        Args:
            seconds: Time that was spent on all of these messages, or a part of that time.
        """
        served = self._served.get(peer)
        if served is not None:
            served.group.spent_s += seconds
            served.group.largest_s = max(served.group.largest_s, seconds / messages)

    def join(self, peer: bytes, group: str) -> None:
        """Say which group a peer is of; until then it is one of its own."""
        state = self._peers.get(peer)
        if state is None or self._groups.get(group) is state.group:
            return
        joined = self._groups.get(group)
        if joined is None:
            joined = self._groups[group] = _CostGroup()
        if state.num_taken:
            state.group.num_taken -= state.num_taken
            joined.num_taken += state.num_taken
        state.group.num_peers -= 1
        joined.num_peers += 1
        state.group = joined

    def _settle(self, work_s: float) -> None:
        """Put what the last turn cost in the place of what was expected."""
        for group in {id(served.group): served.group for served in self._served.values()}.values():
            group.settle(work_s)
        for served in self._served.values():
            served.served_s += served.num_taken * served.group.usual_s - served.planned_s
            served.planned_s = 0.0
            served.num_taken = 0
        self._served.clear()
        if len(self._peers) - len(self._waiting) > MAX_IDLE:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Forget half of the peers without messages: those that would be the first to be served."""
        idle = (each for each in self._peers.items() if not each[1].waiting)
        kept = dict(heapq.nlargest(MAX_IDLE // 2, idle, key=lambda item: item[1].served_s))
        for peer, each in self._peers.items():
            each.group.num_peers -= not each.waiting and peer not in kept
        self._peers = self._waiting | kept
