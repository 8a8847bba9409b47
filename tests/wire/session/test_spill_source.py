"""A session whose process is gone, sent from its files: no socket, the time is an argument."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradwatch_wire import Ack, Envelope, Event, Hello, Refuse, Welcome, decode, encode_body
from gradwatch_wire.session.driver import send_due
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.session import SessionPhase
from gradwatch_wire.session.spill_format import pack_header, pack_record
from gradwatch_wire.session.spill_source import RecordCursor, resumed_session
from gradwatch_wire.session.spilled_session import SpilledSession, segment_name, stem_of
from gradwatch_wire.session.timing import ACK_TIMEOUT_S, HELLO_EVERY_S, MAX_IN_FLIGHT

SESSION = b"s" * 16
BOOT, OTHER_BOOT = b"b" * 16, b"o" * 16
HELLO = Hello(run="gpt", rank=3, world=4, versions={"gradwatch": "1"})


def event(seq: int) -> BufferedRecord:
    kind, body = encode_body(Event(name="mark", step=seq))
    return BufferedRecord(seq, kind, 7, body)


class Sent:
    """A replay, with a clock that the test moves."""

    def __init__(self, directory: Path, *seqs: int) -> None:
        path = directory / segment_name(stem_of("gpt", 3, SESSION), 0)
        frames = b"".join(pack_record(event(seq)) for seq in seqs)
        path.write_bytes(pack_header(SESSION, HELLO) + frames)
        self.session = resumed_session(SpilledSession.open(path))
        self.now_s = 1000.0

    def send(self) -> list[Envelope]:
        out: list[Envelope] = []

        def take(message: bytes) -> bool:
            out.append(decode(message))
            return True

        send_due(self.session, take, self.now_s)
        return out

    def records(self) -> list[tuple[int, int]]:
        """Numbers and `low` of what goes out now."""
        return [(e.seq, e.low) for e in self.send()]

    def receive(self, record: Welcome | Ack | Refuse) -> None:
        assert self.session.receive(Envelope(session=SESSION, record=record), self.now_s)

    def welcome(self, acked: int = 0) -> None:
        assert self.greets()
        self.receive(Welcome(boot_id=BOOT, acked=acked))

    def ack(self, acked: int, boot_id: bytes = BOOT, *, rewind: bool = False) -> None:
        self.receive(Ack(boot_id=boot_id, acked=acked, rewind=rewind))

    def greets(self) -> bool:
        return [type(e.record) for e in self.send()] == [Hello]


def test_a_replay_greets_and_says_that_it_is_one(tmp_path: Path) -> None:
    sent = Sent(tmp_path, 1)
    (greeting,) = sent.send()
    assert isinstance(greeting.record, Hello)
    assert greeting.session == SESSION
    assert greeting.record.versions == {"gradwatch": "1", "spill": "1"}
    assert sent.send() == []
    sent.now_s += HELLO_EVERY_S

    assert sent.greets()


def test_a_replay_sends_what_is_not_stored_and_then_is_done(tmp_path: Path) -> None:
    sent = Sent(tmp_path, 1, 2, 3, 4)
    sent.welcome(acked=2)
    assert sent.records() == [(3, 3), (4, 3)]
    sent.ack(3)
    assert not sent.session.is_over
    sent.ack(4)

    assert sent.session.is_over
    assert sent.session.counters["sent"] == 2


def test_a_replay_of_what_is_stored_sends_nothing(tmp_path: Path) -> None:
    sent = Sent(tmp_path, 1, 2)
    sent.welcome(acked=5)

    assert sent.session.is_over
    assert sent.send() == []


def test_a_number_that_is_not_in_the_file_is_given_up_once_all_before_is_stored(
    tmp_path: Path,
) -> None:
    sent = Sent(tmp_path, 1, 2, 5, 6)
    sent.welcome()
    assert sent.records() == [(1, 1), (2, 1)]
    sent.ack(1)
    assert sent.records() == []
    sent.ack(2)

    assert sent.records() == [(5, 5), (6, 5)]


def test_a_replay_has_so_many_records_on_their_way(tmp_path: Path) -> None:
    sent = Sent(tmp_path, *range(1, 2 * MAX_IN_FLIGHT))
    sent.welcome()
    assert len(sent.records()) == MAX_IN_FLIGHT
    sent.ack(10)

    assert len(sent.records()) == 10


def test_a_replay_goes_on_after_a_rewind_a_restart_and_a_silence(tmp_path: Path) -> None:
    sent = Sent(tmp_path, 1, 2, 3)
    sent.welcome()
    sent.records()
    sent.ack(1, rewind=True)
    sent.ack(1, rewind=True)
    assert sent.records() == [(2, 2), (3, 2)]
    sent.ack(1, OTHER_BOOT)
    sent.welcome(acked=1)
    assert sent.records() == [(2, 2), (3, 2)]
    sent.now_s += ACK_TIMEOUT_S + 0.1
    sent.welcome(acked=3)

    assert sent.session.is_over


def test_a_refused_replay_is_over_and_says_why(tmp_path: Path) -> None:
    sent = Sent(tmp_path, 1)
    assert sent.greets()
    sent.receive(Refuse(reason="no"))
    sent.now_s += 60

    assert sent.send() == []
    assert (sent.session.is_over, sent.session.phase) == (True, SessionPhase.REFUSED)
    assert sent.session.refused == "no"


def test_answers_for_others_are_not_taken(tmp_path: Path) -> None:
    sent = Sent(tmp_path, 1)
    stray = Envelope(session=b"x" * 16, record=Welcome(boot_id=BOOT, acked=9))

    assert not sent.session.receive(stray, 0.0)
    assert not sent.session.is_over


def test_it_is_not_over_before_the_aggregator_has_said_so(tmp_path: Path) -> None:
    sent = Sent(tmp_path)
    assert not sent.session.is_over
    sent.welcome()
    assert sent.session.is_over
    sent.ack(0, OTHER_BOOT)

    assert not sent.session.is_over


def test_a_new_log_is_sent_everything_again(tmp_path: Path) -> None:
    """The old one had acknowledged a part of it."""
    sent = Sent(tmp_path, 1, 2, 3)
    sent.welcome()
    sent.records()
    sent.ack(2)
    sent.ack(0, OTHER_BOOT)
    sent.welcome(acked=0)

    assert sent.records() == [(1, 1), (2, 1), (3, 1)]


class Lists:
    """Reads from a list, and notes from where."""

    def __init__(self, *seqs: int) -> None:
        self.records = [event(seq) for seq in seqs]
        self.begun: list[int] = []

    def read_from(self, seq: int) -> Iterator[BufferedRecord]:
        self.begun.append(seq)
        return iter([record for record in self.records if record.seq >= seq])


def test_a_cursor_reads_on_and_begins_again_only_to_go_back() -> None:
    lists = Lists(2, 3, 5)
    cursor = RecordCursor(lists.read_from, is_growing=False)
    found = [cursor.find(seq) for seq in (1, 2, 3, 3, 4, 6, 7)]

    assert [record and record.seq for record in found] == [2, 2, 3, 3, 5, None, None]
    assert lists.begun == [1]
    assert cursor.find(3) == event(3)
    assert lists.begun == [1, 3]


def test_a_cursor_at_the_end_of_what_grows_looks_again() -> None:
    lists = Lists(1)
    cursor = RecordCursor(lists.read_from, is_growing=True)
    assert cursor.find(2) is None
    lists.records.append(event(2))

    assert cursor.find(2) == event(2)
