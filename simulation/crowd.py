"""A crowd of sessions that all have a backlog after an outage: credit, on a simulated network.

Sessions and credit are those of the product. The aggregator takes so many bytes a second out of its
queue, commits every 5 ms, and answers each session once for each commit.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Final

from gradwatch_server.ingest.credit import Credit
from gradwatch_server.ingest.fair_queue import FairQueue
from gradwatch_server.ingest.inbox import CONTROL_BYTES, MESSAGE_BYTES
from gradwatch_wire import Ack, Beat, Envelope, Event, Hello, Kind, Record, Welcome, decode
from gradwatch_wire.codec import encode_body, place_of
from gradwatch_wire.session.driver import send_due
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.session import Session

TICK_S: Final = 0.005
BOOT_ID: Final = bytes(16)
RECORD_BYTES: Final = 11_000
RECLAIM_EVERY_S: Final = 1.0
"""Time between two looks at idle sessions that hold what others wait for."""

IDLE_EVERY_S: Final = 2.0
"""Time between two records of a session without a backlog."""

_EVENT: Final = encode_body(Event(name="x" * 500, step=0))[1]


@dataclass(slots=True)
class Backlog:
    """Records of a session, all alike.

    Args:
        last: Number of the last one.
        body: Body of each.
    """

    last: int
    body: bytes
    counters: Counter[str] = field(default_factory=Counter)

    def get(self, seq: int) -> BufferedRecord | None:
        return BufferedRecord(seq, Kind.EVENT, 0, self.body) if seq <= self.last else None

    def first_from(self, seq: int) -> BufferedRecord | None:
        """Return the same: none is ever gone."""
        return self.get(seq)

    def release(self, acked: int) -> int:
        return acked

    def resume(self, welcome: Welcome) -> int:
        """Go on after what is stored."""
        return welcome.acked


@dataclass(slots=True)
class _Client:
    session: Session[Backlog]
    produced_s: dict[int, float] = field(default_factory=dict)
    finished_s: float | None = None


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """Result of a crowd.

    Args:
        num_again: Records that were sent more than once.
        num_dropped: Messages for which there was no room.
        finish_ratio: Time at which the last backlog was stored, by that of the first.
        idle_p99_s: 99th percentile of the time until a record of an idle session was acknowledged.
        most_granted: Largest share of the queue that was granted at any time.
        seconds: Time that it took.
    """

    num_again: int
    num_dropped: int
    finish_ratio: float
    idle_p99_s: float
    most_granted: float
    seconds: float


class Crowd:
    """Sessions, their connections and the aggregator's port.

    Args:
        backlogs: Records that each session has at the beginning, 0 for one that is idle.
        queue_bytes: Size of the queue.
        rate_bytes: Bytes that leave it in a second.
        round_trip_s: Round trip of the network.
        record_bytes: Size of the body of each record.
    """

    def __init__(
        self,
        backlogs: list[int],
        queue_bytes: int,
        rate_bytes: float,
        round_trip_s: float,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        body = _EVENT.ljust(record_bytes, b"\0")
        self._credit = Credit(queue_bytes)
        self._rate_bytes, self._delay_s = rate_bytes, round_trip_s / 2
        self._now_s = 1_000.0
        self._began_s = self._reclaimed_s = self._now_s
        self._clients = {
            number.to_bytes(16, "big"): _Client(
                Session(
                    number.to_bytes(16, "big"), Hello(run="r", rank=0, world=1), Backlog(last, body)
                )
            )
            for number, last in enumerate(backlogs)
        }
        self._idle = [client for client in self._clients.values() if not client.session.source.last]
        self._up: list[tuple[float, int, bytes]] = []
        self._down: deque[tuple[float, bytes, Record]] = deque()
        self._queue: FairQueue[tuple[bytes, int]] = FairQueue(2 * queue_bytes, queue_bytes)
        self._acked: Counter[bytes] = Counter()
        self._num_messages = self._most_granted = 0
        self._latencies_s: list[float] = []
        self._woken: set[bytes] = set(self._clients)

    def run(self) -> CrowdResult:
        """Run until all backlogs are stored."""
        busy = [client for client in self._clients.values() if client.session.source.last]
        while any(own.finished_s is None for own in busy):
            self._step()
        times = [own.finished_s - self._began_s for own in busy if own.finished_s is not None]
        p99_s = quantiles(self._latencies_s, n=100)[-1] if len(self._latencies_s) > 1 else 0.0
        return CrowdResult(
            num_again=sum(
                max(0, client.session.counters["sent"] - client.session.source.last)
                for client in self._clients.values()
            ),
            num_dropped=self._queue.num_dropped,
            finish_ratio=max(times) / min(times),
            idle_p99_s=p99_s,
            most_granted=self._most_granted / self._credit.max_bytes,
            seconds=max(times),
        )

    def _step(self) -> None:
        self._now_s += TICK_S
        self._produce()
        while self._down and self._down[0][0] <= self._now_s:
            _, name, record = self._down.popleft()
            self._deliver(name, record)
        for name in self._woken:
            self._send(name)
        self._woken.clear()
        while self._up and self._up[0][0] <= self._now_s:
            self._arrive(heapq.heappop(self._up)[2])
        answers = dict.fromkeys(self._take())
        answers |= dict.fromkeys(self._credit.serve(self._now_s))
        if self._now_s - self._reclaimed_s >= RECLAIM_EVERY_S:
            self._reclaimed_s = self._now_s
            lost_or_idle = self._credit.reclaim(
                self._now_s, lambda name: not self._queue.holds(name)
            )
            answers |= dict.fromkeys(lost_or_idle)
        for name in answers:
            window_bytes, shrink = self._credit.answer(name, self._now_s)
            ack = Ack(
                boot_id=BOOT_ID, acked=self._acked[name], window_bytes=window_bytes, shrink=shrink
            )
            self._down.append((self._now_s + TICK_S + self._delay_s, name, ack))
        self._most_granted = max(self._most_granted, self._credit.granted_bytes)

    def _produce(self) -> None:
        """Let sessions without a backlog make a record now and then."""
        per_tick = len(self._idle) * TICK_S / IDLE_EVERY_S
        first = int((self._now_s - TICK_S - self._began_s) / TICK_S * per_tick)
        last = int((self._now_s - self._began_s) / TICK_S * per_tick)
        for number in range(first, last):
            client = self._idle[number % len(self._idle)]
            client.session.source.last += 1
            client.produced_s[client.session.source.last] = self._now_s
            self._woken.add(client.session.id)

    def _deliver(self, name: bytes, record: Record) -> None:
        client = self._clients[name]
        client.session.receive(Envelope(session=name, record=record), self._now_s)
        if isinstance(record, Ack):
            for seq in [seq for seq in client.produced_s if seq <= record.acked]:
                self._latencies_s.append(self._now_s - client.produced_s.pop(seq))
            if record.acked == client.session.source.last and client.finished_s is None:
                client.finished_s = self._now_s
        self._woken.add(name)

    def _send(self, name: bytes) -> None:
        def send(message: bytes) -> bool:
            self._num_messages += 1
            arrives_s = self._now_s + self._delay_s
            heapq.heappush(self._up, (arrives_s, self._num_messages, message))
            return True

        send_due(self._clients[name].session, send, self._now_s)

    def _arrive(self, message: bytes) -> None:
        name, seq = place_of(message)
        limit = (self._credit.limit_bytes(name) or 0) + CONTROL_BYTES
        self._queue.put(name, (message, seq), len(message) + MESSAGE_BYTES, limit)

    def _take(self) -> Iterator[bytes]:
        """Yield the sessions of the messages that leave the queue in a tick."""
        for name, message, seq in self._turns():
            size = len(message) + MESSAGE_BYTES
            if seq:
                self._credit.consume(name, size, self._now_s)
                self._acked[name] = max(self._acked[name], seq)
                yield name
                continue
            record = decode(message).record
            if isinstance(record, Hello):
                self._credit.open(name, name, self._now_s)
                window_bytes, _ = self._credit.answer(name, self._now_s)
                welcome = Welcome(boot_id=BOOT_ID, window_bytes=window_bytes)
                self._down.append((self._now_s + TICK_S + self._delay_s, name, welcome))
            elif isinstance(record, Beat):
                self._credit.beat(name, record.shrink, record.waiting_bytes, self._now_s)
                yield name

    def _turns(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield messages until they have taken a tick."""
        left_s = TICK_S
        while self._queue and left_s > 0.0:
            for name, (message, seq) in self._queue.turn(left_s):
                seconds = (len(message) + MESSAGE_BYTES) / self._rate_bytes
                self._queue.charge(name, seconds)
                left_s -= seconds
                yield name, message, seq
