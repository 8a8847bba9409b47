"""The log in a replicated stream: owners that follow each other, and what is purged."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from gradwatch_server.core.entries import Entry, Opened, Received, Tick
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.errors import UnreachableError
from gradwatch_server.nats.jetstream import JetStreamStream
from gradwatch_server.nats.stream import Stored, Stream
from gradwatch_server.storage.encoding import encode_entry
from gradwatch_server.storage.jetstream import removal
from gradwatch_server.storage.jetstream.log import JetStreamLog
from gradwatch_server.storage.jetstream.records import JetStreamRecords
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.sqlite.log import SQLiteLog
from gradwatch_server.storage.sqlite.records import SQLiteRecords
from gradwatch_server.storage.store import Line, StorageError, StorageFault
from gradwatch_wire import Envelope, Hello, encode
from tests.support.records import stats_of

_NUMBERS: Final = itertools.count(1)

SESSIONS: Final = [bytes([number]) * 16 for number in range(3)]


def ticks(first_ns: int, count: int = 1) -> list[Line]:
    return [Line(Entry(first_ns + number, Tick())) for number in range(count)]


def opened(session: bytes = SESSIONS[0]) -> Line:
    hello = Hello(run=f"r{session[0]}", rank=0, world=1, host="h", pid=1, versions={})
    return Line(Entry(1, Opened(session, hello)))


def received(record: Any, session: bytes = SESSIONS[0], seq: int = 1) -> Line:
    envelope = Envelope(session=session, seq=seq, low=1, time_ns=1, record=record)
    return Line(Entry(seq, Received(envelope)), encode(envelope)[1])


def large(seq: int, num_bytes: int) -> Line:
    return received(stats_of(seq, [1.0] * (num_bytes // 8)), seq=seq)


class FailingStream:
    """A stream whose appends fail as it is told: before they are done, or after, or they come late.

    Args:
        stream: Where they are done.
    """

    def __init__(self, stream: JetStreamStream) -> None:
        self.name = stream.name
        self._stream = stream
        self.read = stream.read
        self.purge = stream.purge
        self.take_over = stream.take_over
        self.used_bytes = stream.used_bytes
        self.plan: list[str] = []
        self._late: tuple[Any, Any] | None = None
        self.gets = 0

    def append(self, *arguments: Any, **settings: Any) -> int:
        what = self.plan.pop(0) if self.plan else ""
        if self._late is not None:
            late, self._late = self._late, None
            self._stream.append(*late[0], **late[1])
        if what == "late":
            self._late = arguments, settings
        if what in ("before", "late"):
            msg = "cut off"
            raise UnreachableError(msg)
        sequence = self._stream.append(*arguments, **settings)
        if what == "after":
            msg = "cut off"
            raise UnreachableError(msg)
        return sequence

    def get(self, sequence: int) -> Stored | None:
        self.gets += 1
        return self._stream.get(sequence)


@pytest.fixture
def stream(nats_connection: Connection) -> FailingStream:
    name = f"LOG_{next(_NUMBERS)}"
    stream = JetStreamStream(nats_connection, name)
    stream.ensure([f"{name}.>"], replicas=1, max_bytes=None)
    return FailingStream(stream)


def open_log(stream: FailingStream | JetStreamStream, epoch: int) -> JetStreamLog:
    checked: Stream = stream
    return JetStreamLog(checked, stream.name, 7, epoch)


def offsets(log: JetStreamLog) -> list[int]:
    return [offset for offset, _ in log.entries()]


def refused(call: Callable[[], object]) -> StorageFault:
    with pytest.raises(StorageError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value.fault


# Owners.


def test_whoever_was_followed_writes_nothing(stream: FailingStream) -> None:
    """Neither entries nor what is deleted, nor copies; the new owner does not notice."""
    zombie = open_log(stream, 1)
    zombie.append([opened(), *ticks(2, 9)])
    owner = open_log(stream, 2)
    assert refused(lambda: zombie.append(ticks(20))) is StorageFault.GONE
    assert refused(lambda: zombie.delete([3])) is StorageFault.GONE
    assert refused(lambda: zombie.trim(0, 10)) is StorageFault.GONE  # it would copy the HELLO
    owner.append(ticks(11))
    owner.trim(0, 10)

    assert offsets(owner) == [1, 11]
    assert refused(lambda: zombie.append(ticks(20))) is StorageFault.GONE
    assert refused(lambda: open_log(stream, 1)) is StorageFault.GONE
    owner.append(ticks(12))
    assert offsets(open_log(stream, 3)) == [1, 11, 12]


def test_copies_of_an_owner_that_was_followed_are_refused(stream: FailingStream) -> None:
    """The subject of the copies has a chain of its own, and the new owner is in it."""
    zombie = open_log(stream, 1)
    open_log(stream, 2)
    copies = [(1, encode_entry(opened()))]
    assert refused(lambda: zombie.contents.kept.append(copies)) is StorageFault.GONE


def test_an_append_whose_answer_was_lost_is_written_once(stream: FailingStream) -> None:
    """The engine repeats it until it is told that it was."""
    log = open_log(stream, 1)
    stream.plan = ["before", "after", "after"]
    for _ in range(3):
        assert refused(lambda: log.append(ticks(1, 2))) is StorageFault.FAILED
        assert log.last_offset == 0
    log.append(ticks(1, 2))
    log.append(ticks(3))

    assert [(at, own.received_ns) for at, own in log.entries()] == [(1, 1), (2, 2), (3, 3)]
    assert offsets(open_log(stream, 2)) == [1, 2, 3]


def test_who_goes_on_with_something_else_opens_the_log_anew(stream: FailingStream) -> None:
    """What was written although it was not told would have the place of what comes now."""
    log = open_log(stream, 1)
    stream.plan = ["after"]
    assert refused(lambda: log.append(ticks(1, 2))) is StorageFault.FAILED
    assert refused(lambda: log.append(ticks(50))) is StorageFault.GONE
    again = open_log(stream, 1)

    assert [own.received_ns for _, own in again.entries()] == [1, 2]
    again.append(ticks(50))
    assert offsets(again) == [1, 2, 3]


@pytest.mark.parametrize("how", ["before", "late", "after"])
@pytest.mark.parametrize("what", ["deleted", "copies", "nothing"])
def test_what_got_no_answer_is_settled_before_anything_else_is_written(
    stream: FailingStream, how: str, what: str
) -> None:
    """It would be taken for another owner's."""
    log = open_log(stream, 1)
    log.append([opened(), *ticks(2, 9)])
    log.append(ticks(11))
    stream.plan = ["", how] if what == "deleted" else [how]
    if what == "nothing":
        assert refused(log.contents.log.append_nothing) is StorageFault.FAILED
    else:
        assert refused(lambda: log.trim(0, 10)) is StorageFault.FAILED  # it copies the HELLO first
    log.append(ticks(12))
    log.trim(0, 11)
    log.append(ticks(13))

    assert offsets(log) == offsets(open_log(stream, 2)) == [1, 12, 13]


# Batches of several messages.


def test_a_batch_of_several_messages_is_there_whole_or_not_at_all(stream: FailingStream) -> None:
    """The messages of one that was not completed are passed over, by everybody."""
    log = open_log(stream, 1)
    log.append(ticks(1))
    lines = [large(number, 250_000) for number in range(1, 5)]
    stream.plan = ["", "before"]
    assert refused(lambda: log.append(lines)) is StorageFault.FAILED
    after_crash = open_log(stream, 2)
    assert (offsets(after_crash), after_crash.last_offset) == ([1], 1)
    after_crash.append(ticks(2))
    assert offsets(open_log(stream, 3)) == [1, 2]


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_batch_of_several_messages_goes_on_where_it_was(stream: FailingStream, how: str) -> None:
    """When the engine repeats it."""
    log = open_log(stream, 1)
    lines = [large(number, 250_000) for number in range(1, 5)]
    stream.plan = ["", how, how]
    for _ in range(2):
        assert refused(lambda: log.append(lines)) is StorageFault.FAILED
    log.append(lines)
    log.append(ticks(9))
    again = open_log(stream, 2)

    assert [own for _, own in again.entries()][:4] == [own.entry for own in lines]
    assert offsets(log) == offsets(again) == [1, 2, 3, 4, 5]


# What is deleted.


def test_opening_reads_headers_only(stream: FailingStream) -> None:
    """And what is deleted, which is one message."""
    log = open_log(stream, 1)
    for number in range(60):
        log.append(ticks(number))
    log.delete([3, 60])
    stream.gets = 0
    again = open_log(stream, 2)

    assert stream.gets == 1
    assert again.last_offset == 60
    assert offsets(again) == [own for own in range(1, 60) if own != 3]


def test_messages_go_when_little_of_them_is_left(
    stream: FailingStream, make_stats: Callable[..., Any]
) -> None:
    """What is left of them was copied, and is read as before."""
    log = open_log(stream, 1)
    log.append([opened(session) for session in SESSIONS])
    for step in range(50):
        log.append([received(make_stats(step, [1.0] * 1_000), seq=step + 1)])
    before = stream.used_bytes()
    log.trim(0, 45)
    assert stream.used_bytes() < before * 0.2
    assert offsets(log) == [1, 2, 3, *range(46, 54)]
    log.trim_sessions(SESSIONS[:2], 53)
    log.trim(0, 53)

    again = open_log(stream, 2)
    assert again.last_offset == 53
    for own in (log, again):
        assert offsets(own) == [3]
        assert own.runs() == {"r2"}
        assert [size.offset for size in own.sizes(0, 53, 9)] == [3]
    assert 0 < again.used_bytes() < 1_000


def test_what_is_deleted_makes_room_in_a_full_stream(nats_connection: Connection) -> None:
    """Although it takes a message to say so."""
    name = f"LOG_{next(_NUMBERS)}"
    stream = JetStreamStream(nats_connection, name)
    stream.ensure([f"{name}.>"], replicas=1, max_bytes=100_000)
    log = open_log(stream, 1)
    for number in range(1, 19):
        log.append([large(number, 5_000)])

    def fill() -> None:
        while True:
            log.append(ticks(1))

    assert refused(fill) is StorageFault.FULL
    assert refused(lambda: log.append([large(1, 5_000)])) is StorageFault.FULL
    last = log.last_offset
    log.trim(0, 10)
    log.append([large(99, 5_000)])

    assert offsets(log) == list(range(11, last + 2))
    assert offsets(open_log(stream, 2)) == offsets(log)


def test_a_message_that_was_lost_is_told(
    stream: FailingStream, nats_connection: Connection
) -> None:
    """A log that ended early would be taken for the truth."""
    log = open_log(stream, 1)
    for number in range(5):
        log.append(ticks(number))
    lost = log.contents.log.batches.all()[2].sequences[0]
    nats_connection.call(
        lambda client: client.jetstream().delete_msg(stream.name, lost), "delete one"
    )
    assert refused(lambda: list(log.entries())) is StorageFault.DAMAGED
    assert refused(lambda: open_log(stream, 2)) is StorageFault.DAMAGED


# Against the log in SQLite.


class Model:
    """The same calls to both logs; the one in the stream has a new owner now and then."""

    def __init__(self, stream: FailingStream, chosen: random.Random) -> None:
        self.stream = stream
        self.chosen = chosen
        self.epoch = 1
        self.log = open_log(stream, 1)
        self.database = Database(None)
        self.model = SQLiteLog(self.database)
        self.seq = itertools.count(1)

    def step(self, make_stats: Callable[..., Any]) -> None:
        last = self.model.last_offset
        low, high = sorted(self.chosen.randrange(last + 3) for _ in range(2))
        match self.chosen.randrange(8):
            case 0 | 1 | 2:
                lines = [self._line(make_stats) for _ in range(self.chosen.randrange(1, 9))]
                self._both(lambda log: log.append(lines))
            case 3:
                self._both(lambda log: log.trim(0, high))
            case 4:
                self._both(lambda log: log.trim(low, high))
            case 5:
                some = [own for own in range(low, high) if self.chosen.random() < 0.8]
                self._both(lambda log: log.delete(some))
            case 6:
                self._both(lambda log: log.trim_sessions(SESSIONS[:1], high))
            case _:
                self.epoch += 1
                self.log = open_log(self.stream, self.epoch)

    def _both(self, call: Callable[[Any], None]) -> None:
        call(self.log)
        call(self.model)

    def _line(self, make_stats: Callable[..., Any]) -> Line:
        session, seq = self.chosen.choice(SESSIONS), next(self.seq)
        match self.chosen.randrange(12):
            case 0:
                return opened(session)
            case 1 | 2:
                return Line(Entry(seq, Tick()))
            case _:
                return received(make_stats(seq, [1.0] * 9), session, seq)

    def compare(self) -> None:
        """All that can be asked is answered alike."""
        last = self.model.last_offset
        assert self.log.last_offset == last
        low, high = sorted(self.chosen.randrange(last + 3) for _ in range(2))
        for after in (0, low):
            assert list(self.log.entries(after)) == list(self.model.entries(after))
        assert list(self.log.sizes(low, high, 5)) == list(self.model.sizes(low, high, 5))
        assert self.log.runs() == self.model.runs()
        records = JetStreamRecords(self.log.contents), SQLiteRecords(self.database)
        for session in SESSIONS:
            mine, theirs = (list(own.of_session(session, high, 9)) for own in records)
            assert mine == theirs
        mine, theirs = (list(own.before(high, 20)) for own in records)
        assert mine == theirs
        mine, theirs = (list(own.after(low, 20)) for own in records)
        assert mine == theirs


@pytest.mark.parametrize("seed", range(3))
def test_it_answers_as_the_log_in_sqlite(
    stream: FailingStream,
    make_stats: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Whatever is written and deleted, over owners that follow each other."""
    monkeypatch.setattr(removal, "SPARE_BYTES", 500)  # copies are written anew too
    model = Model(stream, random.Random(seed))
    for _ in range(60):
        model.step(make_stats)
        model.compare()
