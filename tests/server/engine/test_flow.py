"""Flow over real sockets: whose messages are taken first, what is dropped, and asked for again."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from gradwatch_server.budgets import Budgets
from gradwatch_server.engine import alert_delivery
from gradwatch_wire import Ack, Event, Hello, Welcome, decode
from gradwatch_wire.session.driver import send_due
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session
from tests.support.engine import Start, attached
from tests.support.records import manifest_of
from tests.support.waiting import PATIENCE_S, wait_until

MIB = 1 << 20
NUM_TRAINERS = 12
"""More than the eight that fill the queue, each its share."""

NAN = float("nan")


def large(step: int, num_bytes: int) -> Event:
    """Return a record of about so many bytes, which no packing makes smaller."""
    noise = random.Random(step)
    texts = {f"k{i}": noise.randbytes(2_000).hex() for i in range(num_bytes // 4_000)}
    return Event(name="large", step=step, data=texts)


class Trainer:
    """A session of our client over a socket, which sends as fast as it may."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, run: str) -> None:
        self.session = Session(os.urandom(16), Hello(run=run, rank=0, world=1), Outbox(64 * MIB))
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(endpoint)

    def work(self) -> None:
        """Send and receive once."""
        send_due(self.session, self._send, time.monotonic())
        while self._socket.poll(5):
            self.session.receive(decode(self._socket.recv()), time.monotonic())

    def close(self) -> None:
        self._socket.close()

    def _send(self, message: bytes) -> bool:
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


@pytest.fixture
def train() -> Iterator[Callable[..., Trainer]]:
    """Make a trainer: `train(endpoint, run)`."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[Trainer] = []

    def begin(endpoint: str, run: str) -> Trainer:
        made.append(Trainer(context, endpoint, run))
        return made[-1]

    yield begin
    for one in made:
        one.close()
    context.term()


@pytest.mark.slow
def test_an_honest_record_does_not_wait_for_all_of_a_greedy_peer(start: Start) -> None:
    """It is acknowledged while most of what came before it still waits (S23)."""
    running = start()
    greedy = running.peer(run="greedy").attach([f"l{n}" for n in range(4_000)])
    honest = running.peer(run="honest").attach()
    groups = {f"group{n}": tuple(range(4_000)) for n in range(32)}
    names = [f"l{n}" for n in range(4_000)]
    for number in range(2, 14):
        greedy.declare(names, groups=groups, manifest_id=number)
    honest.stats(0)
    honest.acked()
    taken = running.engine._tracker.accepted(greedy.session)
    greedy.acked()

    assert taken < 10
    running.shows("greedy", stored=13, lost=0)


def test_what_waits_is_bounded_while_the_disk_is_full(
    start: Start, train: Callable[..., Trainer]
) -> None:
    """Nothing is dropped, nothing is sent twice: no more is granted than there is room (S27)."""
    running = start(budgets=Budgets.model_construct(queue_bytes=8 * MIB))
    trainers = [train(running.endpoint, f"run{number}") for number in range(NUM_TRAINERS)]

    def all_work() -> None:
        for one in trainers:
            one.work()

    def drained() -> bool:
        all_work()
        return all(one.session.is_drained for one in trainers)

    for one in trainers:
        one.session.source.append(manifest_of(["a"]), 1)
    wait_until(drained)
    db = running.store.db
    db.execute(f"PRAGMA max_page_count={db.number('page_count')}")
    for step in range(20):
        for one in trainers:
            one.session.source.append(large(step, 120_000), 1)
    use = running.engine.budget_use["queue_bytes"]

    credit = running.engine._ingest.credit
    end_s = time.monotonic() + 2.0
    while time.monotonic() < end_s:
        all_work()
        assert (use.used or 0) <= credit.granted_bytes <= 8 * MIB
    assert running.published.fault
    db.execute("PRAGMA max_page_count=1000000")
    wait_until(drained, "all to be sent")
    for number in range(NUM_TRAINERS):
        running.shows(f"run{number}", stored=21, lost=0)
    assert use.num_refused == 0
    assert [one.session.counters["sent"] for one in trainers] == [21] * NUM_TRAINERS


@pytest.mark.slow
def test_who_lies_about_its_window_is_dropped_and_then_cut_off(start: Start) -> None:
    """Another one, which keeps to its own, loses nothing and sends nothing twice."""
    running = start()
    honest = running.peer(run="honest", credit=True).attach()
    liar = running.peer(run="liar", credit=True).attach()
    db = running.store.db
    db.execute(f"PRAGMA max_page_count={db.number('page_count')}")
    honest.stats(0)
    use = running.engine.budget_use["queue_bytes"]

    def is_cut_off() -> bool:
        liar.send(large(liar.seq, 120_000))
        return bool(running.engine.refused["flood"])

    wait_until(is_cut_off)
    assert use.num_refused > 0
    assert (use.used or 0) < 2 * MIB
    db.execute("PRAGMA max_page_count=1000000")
    honest.acked()


def test_a_session_is_asked_to_send_again_once_a_second(start: Start) -> None:
    running, peer = attached(start())
    began_s = time.monotonic()
    asked = 0
    for seq in range(4, 60):
        peer.send_as(seq, 1, Event(name="too early", step=0))
        answer = peer.receive()
        assert isinstance(answer, Ack)
        asked += answer.rewind
    assert 1 <= asked <= 1 + (time.monotonic() - began_s)

    for seq in range(2, 60):
        peer.send_as(seq, 1, Event(name="again", step=0))
    peer.acked(59)
    running.shows(stored=59, lost=0)


@pytest.mark.slow
@pytest.mark.parametrize("comes_again", [False, True])
def test_what_was_dropped_last_is_asked_for_without_another_record(
    start: Start, comes_again: bool
) -> None:
    """The client would notice only after a while; also if a copy that nobody needs went with it."""
    running, peer = attached(start(budgets=Budgets(queue_bytes=32 * MIB)))
    db = running.store.db
    db.execute(f"PRAGMA max_page_count={db.number('page_count')}")
    for step in range(60):
        peer.send(large(step, 120_000))
    use = running.engine.budget_use["queue_bytes"]

    def is_full() -> bool:
        peer.send(large(peer.seq, 120_000))
        return bool(use.num_refused)

    wait_until(is_full)
    if comes_again:
        num_refused = use.num_refused

        def is_refused() -> bool:
            peer.send_as(2, 1, large(2, 120_000))
            return bool(use.num_refused > num_refused)

        wait_until(is_refused)
    db.execute("PRAGMA max_page_count=1000000")

    acked = 0
    while acked < peer.seq:
        answer = peer.receive()
        acked = answer.acked
        for seq in range(acked + 1, peer.seq + 1 if answer.rewind else 0):
            peer.send_as(seq, 1, large(seq, 120_000))
            time.sleep(0.01)
    running.shows(stored=peer.seq, lost=0)


def test_welcome_says_how_much_may_be_in_flight(start: Start) -> None:
    running = start(budgets=Budgets(in_flight_bytes=6 * MIB, queue_bytes=40 * MIB))
    welcome = running.peer().greet()
    assert isinstance(welcome, Welcome)
    assert welcome.max_in_flight_bytes == 5 * MIB


@pytest.mark.slow
def test_other_ranks_are_told_of_an_alert_by_and_by(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 and the origin's at once, and nobody is left out (N2)."""
    monkeypatch.setattr(alert_delivery, "COPIES_PER_ROUND", 1)
    running = start()
    ranks = [running.peer(rank=rank, world=40).attach() for rank in range(40)]
    most = 0
    for rank in ranks:
        rank.stats(0, (NAN, 1.0) if rank is ranks[7] else (1.0, 1.0))
    end_s = time.monotonic() + PATIENCE_S
    while not all(rank.alerts for rank in ranks) and time.monotonic() < end_s:
        most = max(most, running.engine._delivery._num_waiting)
        for rank in ranks:
            rank.received()

    assert all(rank.alerts for rank in ranks)
    assert most > 10


def test_a_message_of_an_alert_reads_the_same_however_it_was_packed(start: Start) -> None:
    running = start()
    first, second = (running.peer(rank=rank, world=2).attach() for rank in range(2))
    for peer in (first, second):
        peer.stats(0, (NAN, 1.0))

    def told() -> bool:
        first.received(), second.received()
        return bool(first.alerts and second.alerts)

    wait_until(told)
    assert repr(first.alerts[0]) == repr(second.alerts[0])  # NaN is not equal to itself
