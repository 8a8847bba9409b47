"""Credit: what is granted fits into the queue, whatever sessions do, and nobody starves."""

from __future__ import annotations

import random
from collections import deque

import pytest

from gradwatch_server.ingest.credit import CONFIRM_S, FIRST_RECORD_BYTES, IDLE_S, NEW_SHARE, Credit
from simulation.crowd import RECORD_BYTES, Crowd

KIB, MIB = 1 << 10, 1 << 20
A, B, C = b"a", b"b", b"c"


def heard(peer: bytes) -> bool:
    """Say that nothing of any connection waits."""
    return True


def window_of(credit: Credit, session: bytes, now_s: float = 0.0) -> int:
    window_bytes, _ = credit.answer(session, now_s)
    assert window_bytes is not None
    return window_bytes


def test_a_session_begins_with_room_for_a_record() -> None:
    credit = Credit(MIB)
    credit.open(A, b"p", 0.0)
    assert window_of(credit, A) == FIRST_RECORD_BYTES


def test_a_window_widens_while_it_is_used_up_to_the_share_of_a_session() -> None:
    credit = Credit(MIB)
    credit.open(A, b"p", 0.0)
    seen = []
    for _ in range(12):
        for _ in range(window_of(credit, A) // 10_000):
            credit.consume(A, 10_000, 0.0)
        seen.append(window_of(credit, A))
    assert seen == sorted(seen)
    assert MIB - 2 * FIRST_RECORD_BYTES < seen[-1] <= MIB


def test_what_is_taken_back_is_free_once_it_is_confirmed() -> None:
    credit = Credit(MIB)
    credit.open(A, b"p", 0.0)
    for _ in range(10):
        for _ in range(window_of(credit, A) // 10_000):
            credit.consume(A, 10_000, 0.0)
    window_of(credit, A)
    granted = credit.granted_bytes
    window_bytes, shrink = credit.answer(A, IDLE_S)
    assert shrink == 1
    assert window_bytes is not None
    assert credit.granted_bytes == granted
    credit.beat(A, 0, 0, IDLE_S)  # one that crossed the answer
    assert credit.granted_bytes == granted
    credit.beat(A, 1, 0, IDLE_S)
    assert credit.granted_bytes == window_bytes < granted


def test_who_waits_longest_is_served_first() -> None:
    credit = Credit(NEW_SHARE * FIRST_RECORD_BYTES)
    for name in (A, B, C):
        credit.open(name, name, 0.0)
    for name in (B, C):
        assert window_of(credit, name) == 0
        credit.beat(name, 0, 40 * KIB, 0.0)
    assert credit.serve(0.0) == []
    credit.consume(A, 50 * KIB, 0.0)
    assert credit.serve(0.0) == [B]
    credit.consume(B, 40 * KIB, 0.0)
    assert credit.serve(0.0) == [C]


def test_idle_sessions_keep_nothing_that_others_wait_for() -> None:
    """The starvation case: with a record kept for each idle session, 1,164 of 4,096 waited."""
    credit = Credit(32 * FIRST_RECORD_BYTES)
    names = [number.to_bytes(2, "big") for number in range(64)]
    for name in names[:32]:
        credit.open(name, name, 0.0)
        for _ in range(4):
            credit.consume(name, window_of(credit, name) // 2, 0.0)
    for name in names[32:]:
        credit.open(name, name, 0.0)
        credit.beat(name, 0, FIRST_RECORD_BYTES, 0.0)
    served: list[bytes] = []
    for second in range(1, 20):
        for name in credit.reclaim(second, heard):
            _, shrink = credit.answer(name, second)
            credit.beat(name, shrink, 0, second)
        for name in credit.serve(second):
            served.append(name)
            credit.consume(name, FIRST_RECORD_BYTES // 2, second)
    assert served == names[32:]


def test_who_opens_sessions_and_sends_nothing_leaves_room_for_those_that_send() -> None:
    credit = Credit(MIB)
    credit.open(A, A, 0.0)
    credit.consume(A, 10_000, 0.0)
    for number in range(1_000):
        credit.open(number.to_bytes(2, "big"), b"p", 0.0)
        credit.open_fixed(number.to_bytes(3, "big"), b"q", 8 * MIB, 0.0)
    assert credit.granted_bytes <= 2 * MIB // NEW_SHARE + FIRST_RECORD_BYTES
    for _ in range(12):
        credit.consume(A, window_of(credit, A), 0.0)
    assert window_of(credit, A) > MIB // 3


def test_who_confirms_nothing_is_forgotten() -> None:
    credit = Credit(MIB)
    credit.open(A, A, 0.0)
    credit.consume(A, 10_000, 0.0)
    credit.open(B, B, 0.0)
    credit.beat(B, 0, MIB, 0.0)
    assert credit.reclaim(IDLE_S, heard) == [A]
    credit.answer(A, IDLE_S)
    credit.reclaim(IDLE_S + CONFIRM_S, lambda peer: peer != A)  # it waits in the queue
    assert A in credit
    credit.reclaim(IDLE_S + CONFIRM_S, heard)
    assert A not in credit


def test_a_client_without_credit_has_a_fixed_promise() -> None:
    credit = Credit(MIB)
    promise = credit.open_fixed(A, b"p", 8 * MIB, 0.0)
    assert FIRST_RECORD_BYTES <= promise <= MIB // NEW_SHARE
    credit.consume(A, 10_000, 0.0)
    assert credit.answer(A, 0.0) == (None, 0)
    assert credit.granted_bytes == promise
    credit.forget(A)
    assert credit.granted_bytes == 0


@pytest.mark.parametrize("seed", range(60))
def test_what_is_sent_never_exceeds_what_is_granted(seed: int) -> None:
    """Sessions die, connect anew, fall idle, and cross answers that take something back."""
    numbers = random.Random(seed)
    credit = Credit(numbers.choice([100, 400, 4_000]) * KIB)
    clients = {bytes([number]): Client(credit, bytes([number])) for number in range(12)}
    now_s = 0.0
    for _ in range(2_000):
        now_s += numbers.choice([0.0, 0.01, 0.3])
        client = clients[numbers.choice(list(clients))]
        steps = [client.send, client.send, client.arrive, client.take, client.answer, client.hear]
        numbers.choice(steps)(now_s)
        if numbers.random() < 0.01:
            client.connect(now_s)
        for name in credit.serve(now_s):
            clients[name].answer(now_s)
        queued = sum(client.queued_bytes for client in clients.values())
        assert queued <= credit.granted_bytes <= credit.max_bytes
    for _ in range(100):
        now_s += 2 * IDLE_S
        for client in clients.values():
            for step in (client.hear, client.send, client.arrive, client.take, client.answer):
                step(now_s)
        for name in credit.serve(now_s):
            clients[name].answer(now_s)
    assert not any(client.left for client in clients.values())


class Client:
    """A client that keeps to its window, and the connection in both directions."""

    def __init__(self, credit: Credit, name: bytes) -> None:
        self.credit, self.name, self.left = credit, name, 0
        self.connect(0.0)

    def connect(self, now_s: float) -> None:
        """Begin anew: what is on its way is lost, and what is in the queue is dropped."""
        self.queue: deque[tuple[str, int, int]] = deque()
        self.up: deque[tuple[str, int, int]] = deque()
        self.down: deque[tuple[int, int, int]] = deque()
        self.in_flight = self.window = self.acked = self.seen = self.shrink = 0
        self.left = 30
        self.credit.open(self.name, self.name, now_s)
        self.answer(now_s)

    def send(self, _now_s: float) -> None:
        size = 20 * KIB
        if not self.left:
            return
        if self.in_flight + size <= self.window:
            self.in_flight += size
            self.left -= 1
            self.up.append(("record", size, 0))
        else:
            self.up.append(("beat", self.shrink, size))

    @property
    def queued_bytes(self) -> int:
        return sum(number for kind, number, _ in self.queue if kind == "record")

    def arrive(self, _now_s: float) -> None:
        self.queue += self.up
        self.up.clear()
        assert self.queued_bytes <= (self.credit.limit_bytes(self.name) or 0)

    def take(self, now_s: float) -> None:
        """Let some messages leave the queue, in their order."""
        for _ in range(min(len(self.queue), 3)):
            kind, number, waiting = self.queue.popleft()
            if kind == "beat":
                self.credit.beat(self.name, number, waiting, now_s)
            else:
                self.credit.consume(self.name, number, now_s)
                self.acked += number

    def answer(self, now_s: float) -> None:
        window_bytes, shrink = self.credit.answer(self.name, now_s)
        assert window_bytes is not None
        self.down.append((self.acked, window_bytes, shrink))

    def hear(self, _now_s: float) -> None:
        while self.down:
            acked, self.window, shrink = self.down.popleft()
            self.in_flight -= acked - self.seen
            self.seen = acked
            if shrink > self.shrink:
                self.shrink = shrink
                self.up.append(("beat", shrink, 0))


def test_a_crowd_with_backlogs_sends_nothing_twice() -> None:
    """More sessions than the queue has records for (P6); idle ones are served meanwhile."""
    backlogs = [20] * 300 + [0] * 8
    found = Crowd(backlogs, queue_bytes=200 * RECORD_BYTES, rate_bytes=30e6, round_trip_s=0.01)
    result = found.run()
    assert result.num_again == 0
    assert result.num_dropped == 0
    assert result.most_granted <= 1.0
    assert result.finish_ratio < 1.3
    assert result.idle_p99_s < 0.5


@pytest.mark.parametrize("record_bytes", [70_000, 110_000, 1_000_000])
def test_a_crowd_whose_records_are_larger_than_the_first_window_starves_nobody(
    record_bytes: int,
) -> None:
    """Each has a window that is of no use to it, and none is left to make one of them wider."""
    found = Crowd([5] * 200, 40 * record_bytes, 40 * record_bytes / 0.1, 0.01, record_bytes)
    result = found.run()
    assert result.num_again == 0
    assert result.num_dropped == 0
    assert result.most_granted <= 1.0
    assert result.seconds < 10.0
