"""Spill files and their replay: what is read of a file, and what is sent of a session."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gradwatch_wire import (
    Ack,
    Envelope,
    Event,
    Hello,
    Refuse,
    Welcome,
    decode,
    encode_body,
)
from gradwatch_wire.session.replay import ACK_TIMEOUT_S, HELLO_EVERY_S, MAX_IN_FLIGHT, Replay
from gradwatch_wire.session.spill import (
    MAGIC,
    SessionLock,
    Spilled,
    SpilledSession,
    SpillError,
    find_sessions,
    first_paths,
    pack_header,
    pack_record,
    segment_name,
    stem_of,
)

SESSION = b"s" * 16
BOOT, OTHER_BOOT = b"b" * 16, b"o" * 16
HELLO = Hello(run="gpt", rank=3, world=4, token="secret", versions={"gradwatch": "1"})
STEM = stem_of("gpt", 3, SESSION)


def event(seq: int) -> Spilled:
    kind, body = encode_body(Event(name="mark", step=seq))
    return Spilled(seq, kind, 7, body)


def write(directory: Path, number: int, *seqs: int) -> Path:
    """Write a segment."""
    path = directory / segment_name(STEM, number)
    path.write_bytes(pack_header(SESSION, HELLO) + b"".join(pack_record(event(s)) for s in seqs))
    return path


def numbers(path: Path, first: int = 1) -> list[int]:
    return [record.seq for record in SpilledSession.open(path).records(first)]


def test_the_segments_of_a_session_are_read_in_order_each_record_once(tmp_path: Path) -> None:
    """From any of them. Later segments begin again with what their records need."""
    first = write(tmp_path, 9, 1, 2, 3)
    second = write(tmp_path, 10, 1, 4, 6)

    assert numbers(first) == numbers(second) == [1, 2, 3, 4, 6]
    assert numbers(first, 3) == [3, 4, 6]
    assert list(SpilledSession.open(first).records(6)) == [event(6)]


def test_the_token_does_not_lie_on_the_disk(tmp_path: Path) -> None:
    """The rest of the HELLO does."""
    path = write(tmp_path, 0)

    assert b"secret" not in path.read_bytes()
    opened = SpilledSession.open(path)
    assert opened.session == SESSION
    assert (opened.hello.run, opened.hello.rank, opened.hello.token) == ("gpt", 3, "")


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    """Wherever it tore; what is behind it in the next segment is read."""
    whole = write(tmp_path, 0, 1, 2, 3).read_bytes()
    write(tmp_path, 1, 4)
    start = len(pack_header(SESSION, HELLO))
    size = len(pack_record(event(1)))
    for end in range(start, len(whole) + 1):
        (tmp_path / segment_name(STEM, 0)).write_bytes(whole[:end])
        found = numbers(tmp_path / segment_name(STEM, 0))
        assert found == [*range(1, (end - start) // size + 1), 4]


def test_a_flipped_bit_costs_what_is_behind_it_and_never_gives_a_wrong_record(
    tmp_path: Path,
) -> None:
    """In the length, the checksum or the content."""
    path = write(tmp_path, 0, *range(1, 20))
    whole = path.read_bytes()
    start = len(pack_header(SESSION, HELLO))
    chance = random.Random(7)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[chance.randrange(start, len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        found = list(SpilledSession.open(path).records(1))
        assert len(found) < 19
        assert found == [event(seq) for seq in range(1, len(found) + 1)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no spill file of gradwatch"),
        (b"SQLite format 3\0" * 10, "is no spill file of gradwatch"),
        (MAGIC, "the beginning of the file is damaged"),
        (pack_header(SESSION, HELLO)[:-1], "the beginning of the file is damaged"),
    ],
)
def test_a_foreign_file_is_refused_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "foreign.spill"
    path.write_bytes(content)

    with pytest.raises(SpillError, match=words) as caught:
        SpilledSession.open(path)
    assert "foreign.spill" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sessions_are_found_by_run_and_rank(tmp_path: Path) -> None:
    """Also where a name looks like a pattern, or begins like another."""
    names = [
        stem_of("gpt", 3, b"1" * 16),
        stem_of("gpt", 3, b"2" * 16),
        stem_of("gpt", 33, b"3" * 16),
        stem_of("gpt.3", 3, b"4" * 16),
        stem_of("g-t", 3, b"5" * 16),
    ]
    for name in names:
        for number in (1, 2):
            (tmp_path / segment_name(name, number)).touch()
    found = find_sessions(tmp_path, "gpt", 3)

    assert {path.name for path in found} == {segment_name(name, 1) for name in names[:2]}
    assert len(first_paths(sorted(tmp_path.iterdir()))) == len(names)


def test_a_session_is_claimed_by_one_at_a_time(tmp_path: Path) -> None:
    """Also within one process."""
    claim = SessionLock.take(tmp_path, SESSION)
    assert claim is not None
    assert SessionLock.take(tmp_path, SESSION) is None
    claim.release(remove=True)
    again = SessionLock.take(tmp_path, SESSION)
    assert again is not None
    again.release(remove=True)

    assert list(tmp_path.iterdir()) == []


class Sent:
    """A replay, with a clock that the test moves."""

    def __init__(self, directory: Path, *seqs: int) -> None:
        write(directory, 0, *seqs)
        self.replay = Replay(SpilledSession.open(directory / segment_name(STEM, 0)))
        self.now_s = 1000.0

    def send(self) -> list[Envelope]:
        out = []
        while (frames := self.replay.due(self.now_s)) is not None:
            out.append(decode(frames))
            self.replay.sent(self.now_s)
        return out

    def records(self) -> list[tuple[int, int]]:
        """Numbers and `low` of what goes out now."""
        return [(e.seq, e.low) for e in self.send()]

    def hear(self, record: Welcome | Ack | Refuse) -> None:
        assert self.replay.receive(Envelope(session=SESSION, record=record), self.now_s)

    def welcome(self, acked: int = 0) -> None:
        assert self.greets()
        self.hear(Welcome(boot_id=BOOT, acked=acked))

    def ack(self, acked: int, boot_id: bytes = BOOT, *, rewind: bool = False) -> None:
        self.hear(Ack(boot_id=boot_id, acked=acked, rewind=rewind))

    def greets(self) -> bool:
        return [type(e.record) for e in self.send()] == [Hello]


def test_a_replay_greets_and_says_that_it_is_one(tmp_path: Path) -> None:
    """Once a second, until it is heard."""
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
    assert not sent.replay.over
    sent.ack(4)

    assert sent.replay.done
    assert sent.replay.num_sent == 2


def test_a_replay_of_what_is_stored_sends_nothing(tmp_path: Path) -> None:
    sent = Sent(tmp_path, 1, 2)
    sent.welcome(acked=5)

    assert sent.replay.done
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

    assert sent.replay.done


def test_a_refused_replay_is_over_but_not_done(tmp_path: Path) -> None:
    sent = Sent(tmp_path, 1)
    assert sent.greets()
    sent.hear(Refuse(reason="no"))
    sent.now_s += 60

    assert sent.send() == []
    assert (sent.replay.over, sent.replay.done, sent.replay.refused) == (True, False, "no")


def test_answers_for_others_are_not_taken(tmp_path: Path) -> None:
    sent = Sent(tmp_path, 1)
    stray = Envelope(session=b"x" * 16, record=Welcome(boot_id=BOOT, acked=9))

    assert not sent.replay.receive(stray, 0.0)
    assert not sent.replay.done
