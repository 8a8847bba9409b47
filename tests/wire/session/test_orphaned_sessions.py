"""Sessions whose process is gone, one after the other over the connection of one that lives."""

from __future__ import annotations

from gradwatch_wire import Ack, Alert, Envelope, Event, Hello, Record, Welcome, decode, encode_body
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.session import Session
from gradwatch_wire.session.spill_source import OrphanedSessions, SpillSource

FIRST, SECOND = b"1" * 16, b"2" * 16
BOOT = b"b" * 16


class Orphan:
    """A session of so many records in memory."""

    def __init__(self, session_id: bytes, count: int) -> None:
        events = (Event(name="mark", step=step) for step in range(count))
        records = [
            BufferedRecord(seq, kind, 0, body)
            for seq, (kind, body) in enumerate(map(encode_body, events), 1)
        ]
        source = SpillSource(lambda first: iter(records[first - 1 :]))
        self.session: Session[SpillSource] = Session(
            session_id, Hello(run="test", rank=0, world=1), source
        )
        self.fate = ""

    def finish(self) -> None:
        self.fate = "finished"

    def leave(self) -> None:
        self.fate = "left"


def sent(sessions: OrphanedSessions) -> list[tuple[bytes, int]]:
    """Session and number of what goes out now; 0 is HELLO."""
    out: list[Envelope] = []

    def take(message: bytes) -> bool:
        out.append(decode(message))
        return True

    sessions.send(take, 1000.0)
    return [(envelope.session, envelope.seq) for envelope in out]


def receive(sessions: OrphanedSessions, session_id: bytes, *answers: Record) -> None:
    for answer in answers:
        sessions.receive(Envelope(session=session_id, record=answer), 1000.0)


def test_they_are_sent_one_after_the_other() -> None:
    """The next one begins once the one before is stored; answers to others change nothing."""
    first, second = Orphan(FIRST, 2), Orphan(SECOND, 1)
    sessions = OrphanedSessions([first, second])
    assert sent(sessions) == [(FIRST, 0)]
    receive(sessions, SECOND, Welcome(boot_id=BOOT, acked=0))
    assert sent(sessions) == []
    receive(sessions, FIRST, Welcome(boot_id=BOOT, acked=0))
    assert sent(sessions) == [(FIRST, 1), (FIRST, 2)]
    assert (first.fate, sessions.num_sent) == ("", 0)
    receive(sessions, FIRST, Ack(boot_id=BOOT, acked=2))
    assert sent(sessions) == []
    assert (first.fate, sessions.num_sent) == ("finished", 2)

    assert sent(sessions) == [(SECOND, 0)]


def test_those_that_are_not_stored_are_left_at_the_end() -> None:
    first, second = Orphan(FIRST, 2), Orphan(SECOND, 1)
    sessions = OrphanedSessions([first, second])
    sent(sessions)
    receive(sessions, FIRST, Welcome(boot_id=BOOT, acked=0))
    sent(sessions)
    sessions.close()

    assert (first.fate, second.fate) == ("left", "left")
    assert sent(sessions) == []


def test_alerts_for_them_do_not_pile_up() -> None:
    orphan = Orphan(FIRST, 1)
    receive(OrphanedSessions([orphan]), FIRST, Alert(alert={"id": "a"}))

    assert orphan.session.alerts == []


def test_over_another_connection_the_one_whose_turn_it_is_says_hello() -> None:
    sessions = OrphanedSessions([Orphan(FIRST, 2), Orphan(SECOND, 1)])
    sent(sessions)
    receive(sessions, FIRST, Welcome(boot_id=BOOT, acked=0))
    sent(sessions)
    sessions.greet_again()
    assert sent(sessions) == [(FIRST, 0)]
    receive(sessions, FIRST, Welcome(boot_id=BOOT, acked=1))
    assert sent(sessions) == [(FIRST, 2)]

    nobody = OrphanedSessions([])
    nobody.greet_again()
    assert sent(nobody) == []
