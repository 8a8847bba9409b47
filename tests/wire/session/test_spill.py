"""Spill files: what is read of a file, and which files are a session."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gradwatch_wire import Event, Hello, encode_body
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.spill_format import MAGIC, SpillError, pack_header, pack_record
from gradwatch_wire.session.spilled_session import (
    SpilledSession,
    find_sessions,
    first_paths,
    segment_name,
    stem_of,
)

SESSION = b"s" * 16
HELLO = Hello(run="gpt", rank=3, world=4, token="secret", versions={"gradwatch": "1"})
STEM = stem_of("gpt", 3, SESSION)


def event(seq: int) -> BufferedRecord:
    kind, body = encode_body(Event(name="mark", step=seq))
    return BufferedRecord(seq, kind, 7, body)


def write(directory: Path, number: int, *seqs: int) -> Path:
    path = directory / segment_name(STEM, number)
    path.write_bytes(pack_header(SESSION, HELLO) + b"".join(pack_record(event(s)) for s in seqs))
    return path


def numbers(path: Path, first: int = 1) -> list[int]:
    return [record.seq for record in SpilledSession.open(path).records(first)]


def test_the_segments_of_a_session_are_read_in_order_each_record_once(tmp_path: Path) -> None:
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
    whole = write(tmp_path, 0, 1, 2, 3).read_bytes()
    write(tmp_path, 1, 4)
    start = len(pack_header(SESSION, HELLO))
    size = len(pack_record(event(1)))
    for end in range(start, len(whole) + 1):
        (tmp_path / segment_name(STEM, 0)).write_bytes(whole[:end])
        found = numbers(tmp_path / segment_name(STEM, 0))
        assert found == [*range(1, (end - start) // size + 1), 4]


@pytest.mark.slow
def test_a_flipped_bit_costs_what_comes_after_it_and_never_gives_a_wrong_record(
    tmp_path: Path,
) -> None:
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
