"""Rounds of a session, and their end: no socket, the time is an argument."""

from __future__ import annotations

import pytest

from gradwatch_wire import Ack, Beat, Bye, Envelope, Event, Hello, Record, Welcome, decode
from gradwatch_wire.session.driver import Send, SessionDriver
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session
from gradwatch_wire.session.timing import BEAT_EVERY_S, CLOSE_S, MAX_BATCH

SESSION, OTHER = b"s" * 16, b"o" * 16
BOOT = b"b" * 16


class Others:
    """A session of another process that uses the same connection."""

    def __init__(self) -> None:
        self.received: list[Envelope] = []
        self.num_greetings = 0

    def greet_again(self) -> None:
        self.num_greetings += 1

    def receive(self, envelope: Envelope, now_s: float) -> None:
        assert now_s
        self.received.append(envelope)

    def send(self, send: Send, now_s: float) -> None:
        assert now_s
        send(b"other")


MAX_IN_FLIGHT = 1_000


class Process:
    """A driver, a connection that takes so many messages, and a clock that the test moves."""

    def __init__(self, others: Others | None = None) -> None:
        self.now_s = 1000.0
        self.outbox = Outbox(1 << 20)
        hello = Hello(run="test", rank=0, world=1)
        session = Session(SESSION, hello, self.outbox, MAX_IN_FLIGHT)
        self.driver = SessionDriver(session, self.now_s, others)
        self.room = 10_000

    def round(self) -> list[bytes]:
        out: list[bytes] = []

        def send(frames: bytes) -> bool:
            if len(out) == self.room:
                return False
            out.append(frames)
            return True

        self.driver.send(send, self.now_s)
        return out

    def records(self) -> list[Record]:
        return [decode(frames).record for frames in self.round()]

    def receive(self, record: Record, session: bytes = SESSION) -> None:
        self.driver.receive(Envelope(session=session, record=record), self.now_s)

    def produce(self, *records: Record) -> None:
        for record in records:
            assert self.outbox.append(record, 0)

    def open(self) -> None:
        """Let the session be welcomed, and its first BEAT be sent."""
        assert [type(record) for record in self.records()] == [Hello]
        self.receive(Welcome(boot_id=BOOT, acked=0))
        assert [type(record) for record in self.records()] == [Beat]


@pytest.fixture
def process() -> Process:
    made = Process()
    made.open()
    return made


def test_a_round_sends_hello_then_records_and_beats() -> None:
    process = Process()
    process.produce(Event(name="mark", step=1))
    assert [type(record) for record in process.records()] == [Hello]
    assert process.records() == []
    process.receive(Welcome(boot_id=BOOT, acked=0))

    assert [type(record) for record in process.records()] == [Event]
    process.now_s += BEAT_EVERY_S
    assert [type(record) for record in process.records()] == [Beat]


def test_a_record_is_a_sign_of_life_and_a_backlog_is_none(process: Process) -> None:
    """While records flow no BEAT is sent; one that waits for room tells nothing of now."""
    process.now_s += BEAT_EVERY_S
    for step in range(8):
        process.produce(Event(name="mark", step=step))
        assert [type(record) for record in process.records()] == [Event]
        process.receive(Ack(boot_id=BOOT, acked=step + 1))
        process.now_s += BEAT_EVERY_S / 4
    process.now_s += BEAT_EVERY_S
    assert [type(record) for record in process.records()] == [Beat]

    process.produce(*[Event(name="mark", step=step) for step in range(MAX_BATCH + 1)])
    process.now_s += BEAT_EVERY_S
    sent = [type(record) for record in process.records()]
    assert sent == [*[Event] * MAX_BATCH, Beat]

    process.produce(*[Event(name="mark", step=step) for step in range(MAX_IN_FLIGHT)])
    for _ in range(2):
        assert len(process.records()) == MAX_BATCH
    process.now_s += BEAT_EVERY_S
    *events, beat = process.records()
    assert 0 < len(events) < MAX_BATCH
    assert isinstance(beat, Beat)


def test_a_hello_that_the_connection_did_not_take_is_sent_in_the_next_round() -> None:
    process = Process()
    process.room = 0
    assert process.records() == []
    process.room = 1

    assert [type(record) for record in process.records()] == [Hello]


def test_a_beat_tells_the_last_step_and_the_time_since(process: Process) -> None:
    process.driver.stepped(7, process.now_s)
    process.now_s += BEAT_EVERY_S
    process.driver.stepped(7, process.now_s)
    (beat,) = process.records()

    assert isinstance(beat, Beat)
    assert (beat.last_step, beat.since_s) == (7, BEAT_EVERY_S)


def test_a_round_has_an_end_and_a_full_connection_too(process: Process) -> None:
    events = [Event(name="mark", step=step) for step in range(2 * MAX_BATCH)]
    process.produce(*events)
    sent = process.records()
    assert sent == events[:MAX_BATCH]
    process.room = 3

    assert process.records() == events[MAX_BATCH : MAX_BATCH + 3]


def test_other_sessions_use_the_connection_until_this_one_closes() -> None:
    others = Others()
    process = Process(others)
    assert process.round()[1:] == [b"other"]
    process.receive(Ack(boot_id=BOOT, acked=3), session=OTHER)
    process.receive(Welcome(boot_id=BOOT, acked=0))
    process.driver.close(process.now_s)

    assert b"other" not in process.round()
    assert [envelope.session for envelope in others.received] == [OTHER]


def test_it_is_closed_once_its_last_record_is_acknowledged(process: Process) -> None:
    assert not process.driver.is_closed(process.now_s)
    process.driver.close(process.now_s)
    process.produce(Bye())
    process.round()
    assert not process.driver.is_closed(process.now_s)
    process.receive(Ack(boot_id=BOOT, acked=1))

    assert process.driver.is_closed(process.now_s)


def test_it_closes_in_time_when_nobody_answers(process: Process) -> None:
    """Half of the time is for records that are still made."""
    process.driver.close(process.now_s)
    process.produce(Bye())
    moments = [0.4 * CLOSE_S, 0.6 * CLOSE_S, CLOSE_S]
    times_s = [process.now_s + moment for moment in moments]

    assert [process.driver.may_produce(time_s) for time_s in times_s] == [True, False, False]
    assert [process.driver.is_closed(time_s) for time_s in times_s] == [False, False, True]


def test_over_another_connection_it_begins_with_hello() -> None:
    others = Others()
    process = Process(others)
    assert own(process.round()) == [Hello]
    process.receive(Welcome(boot_id=BOOT, acked=0))
    process.produce(Event(name="mark", step=0), Event(name="mark", step=1))
    process.round()
    process.receive(Ack(boot_id=BOOT, acked=1))
    process.driver.greet_again()
    assert own(process.round()) == [Hello]
    assert others.num_greetings == 1
    process.receive(Welcome(boot_id=BOOT, acked=1))

    assert own(process.round()) == [Event]


def own(messages: list[bytes]) -> list[type[Record]]:
    """The kinds of the records that are not of another session."""
    return [type(decode(frames).record) for frames in messages if frames != b"other"]
