"""Spill files: records on disk until they are acknowledged, and sent by the next process."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch._faults import Faults
from gradwatch._transport.spill import Spill, claim_orphans, find_directory
from gradwatch_wire import Bye, Column, Hello, Kind, Manifest, Stats, encode_body
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.spill_source import OrphanedSessions
from gradwatch_wire.session.spilled_session import SpilledSession
from tests.support.recording import Sink
from tests.support.waiting import wait_until

SESSION = b"s" * 16
HELLO = Hello(run="test", rank=0, world=1)


def item(seq: int, size: int = 100) -> BufferedRecord:
    return BufferedRecord(seq, Kind.STATS, seq, bytes(size))


def bodies(spill: Spill, first: int = 1) -> list[int]:
    """Numbers that can be read again, in order."""
    found, seq = [], first
    while (record := spill.find(seq)) is not None:
        found.append(record.seq)
        seq = record.seq + 1
    return found


def on_disk(directory: Path) -> list[int]:
    """Numbers that another process would find."""
    paths = sorted(directory.glob("*.spill"))
    return [record.seq for record in SpilledSession.open(paths[0]).records(1)] if paths else []


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """A spill of so many bytes, and its faults."""
    made: list[Spill] = []

    def start(max_bytes: int = 1 << 20, session: bytes = SESSION) -> tuple[Spill, Faults]:
        faults = Faults()
        made.append(Spill(tmp_path, session, HELLO, max_bytes, faults))
        return made[-1], faults

    yield start
    for spill in made:
        spill.close(finished=True)


def test_what_is_flushed_is_on_disk_and_found_by_number(make: Any, tmp_path: Path) -> None:
    """Numbers that were given up are passed over; the file is for its owner only."""
    spill, _ = make()
    for seq in (1, 2, 5, 6):
        spill.add(item(seq))
    assert on_disk(tmp_path) == []
    spill.flush()

    assert on_disk(tmp_path) == bodies(spill) == [1, 2, 5, 6]
    found = spill.find(2)
    assert found == item(2)
    assert [getattr(spill.find(seq), "seq", None) for seq in (3, 5, 1, 7, 6)] == [5, 5, 1, None, 6]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.spill")} == {0o600}
    assert spill.num_written == 4


def test_what_was_not_flushed_is_found_too(make: Any) -> None:
    """The send buffer may let go of a record at any moment."""
    spill, _ = make()
    spill.add(item(1))

    assert spill.find(1) == item(1)


def test_what_is_acknowledged_leaves_the_disk(make: Any, tmp_path: Path) -> None:
    """Segment by segment; the one that is written stays."""
    spill, _ = make()
    for seq in range(1, 31):
        spill.add(item(seq, 20_000))
    spill.flush()
    before = len(list(tmp_path.glob("*.spill")))
    spill.release(20)
    kept = on_disk(tmp_path)

    assert before > len(list(tmp_path.glob("*.spill"))) >= 1
    assert kept[-1] == 30
    assert 10 < kept[0] <= 21
    assert spill.num_dropped == 0


def test_it_is_bounded_and_the_oldest_give_way(make: Any, tmp_path: Path) -> None:
    spill, _ = make(1 << 20)
    manifest = BufferedRecord(1, Kind.MANIFEST, 0, b"the layers")
    spill.add(manifest)
    for seq in range(2, 202):
        spill.add(item(seq, 20_000))
        spill.flush()
    size = sum(path.stat().st_size for path in tmp_path.glob("*.spill"))
    kept = on_disk(tmp_path)

    assert size <= (1 << 20) + 8 * 20_100
    assert kept[0] == 1
    assert kept[1:] == list(range(kept[1], 202))
    assert spill.num_dropped == kept[1] - 1  # the manifest's first place is among them


def test_a_full_disk_is_told_once_and_training_goes_on(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spill, faults = make()
    spill.add(item(1))
    spill.flush()
    (size,) = [path.stat().st_size for path in tmp_path.glob("*.spill")]
    real = os.pwrite

    def full(descriptor: int, content: bytes, offset: int) -> int:
        real(descriptor, content[:7], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for seq in (2, 3):
        spill.add(item(seq))
        spill.flush()
    monkeypatch.undo()
    spill.add(item(4))
    spill.flush()

    assert on_disk(tmp_path) == bodies(spill) == [1]
    assert [path.stat().st_size for path in tmp_path.glob("*.spill")] == [size]
    assert dict(faults.counts) == {"spill": 1}
    assert "No space left" in faults.last


def test_a_directory_that_vanished_is_told_once(make: Any, tmp_path: Path) -> None:
    spill, faults = make()
    spill.directory = tmp_path / "gone"
    for seq in (1, 2):
        spill.add(item(seq))
        spill.flush()

    assert bodies(spill) == []
    assert dict(faults.counts) == {"spill": 1}


@pytest.mark.parametrize("given", [7, b"x"])
def test_a_spill_that_is_no_path_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=f"spill: a directory, got {type(given).__name__}"):
        gradwatch.attach(nn.Linear(2, 2), spill=given)


def test_a_spill_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.touch()
    with pytest.raises(ValueError, match="spill: cannot make the directory"):
        gradwatch.attach(nn.Linear(2, 2), spill=taken)
    with pytest.raises(ValueError, match="spill_bytes: at least"):
        gradwatch.attach(nn.Linear(2, 2), spill=tmp_path, spill_bytes=7)


def test_the_environment_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument comes first; without both there is none."""
    assert find_directory(None) is None
    monkeypatch.setenv("GRADWATCH_SPILL", str(tmp_path / "environment"))

    assert find_directory(None) == tmp_path / "environment"
    assert find_directory(tmp_path / "argument") == tmp_path / "argument"
    assert (tmp_path / "environment").is_dir()


def test_nothing_stays_on_disk_when_everything_is_acknowledged(
    aggregator: Sink, tmp_path: Path
) -> None:
    """Files and locks."""
    watch = aggregator.attach(backward(), spill=tmp_path)
    for _ in range(5):
        watch.collect()
    watch.close()

    assert watch.stats()["spilled"] == 7
    assert list(tmp_path.iterdir()) == []


def backward() -> nn.Module:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    return model


def leave_files(directory: Path, session: bytes, steps: int, run: str = "test") -> None:
    spill = Spill(directory, session, Hello(run=run, rank=0, world=1), 1 << 20, Faults())
    manifest = Manifest(
        manifest_id=1, names=("a",), numel=Column.pack("<u8", [1]), dtypes=("float32",)
    )
    records = [manifest, *(Stats(manifest_id=1, step=step) for step in range(steps))]
    for seq, record in enumerate(records, 1):
        spill.add(BufferedRecord(seq, *_packed(record)))
    spill.close(finished=False)


def _packed(record: Any) -> tuple[Kind, int, bytes]:
    kind, body = encode_body(record)
    return kind, 0, body


def test_the_next_watch_sends_what_others_left(aggregator: Sink, tmp_path: Path) -> None:
    """Session after session, under their own numbers; files of other runs and ranks stay."""
    leave_files(tmp_path, b"1" * 16, 600)
    leave_files(tmp_path, b"2" * 16, 3)
    leave_files(tmp_path, b"3" * 16, 3, run="test.0")
    watch = aggregator.attach(backward(), spill=tmp_path)
    watch.collect()
    wait_until(lambda: watch.stats()["replayed"] == 605, "all sent")
    watch.close()

    by_session = {
        name: [e.seq for e in aggregator.stored if e.session == name * 16] for name in (b"1", b"2")
    }
    assert by_session == {b"1": list(range(1, 602)), b"2": [1, 2, 3, 4]}
    assert aggregator.lost == []
    assert "spill" in aggregator.hellos[b"1" * 16].versions
    assert isinstance(aggregator.stored[-1].record, Bye)
    assert {path.name.split(".")[0:2][1] for path in tmp_path.iterdir()} == {"0", "lock"}
    assert SpilledSession.open(next(tmp_path.glob("*.spill"))).hello.run == "test.0"


def test_what_cannot_be_sent_stays_for_the_next_one(tmp_path: Path) -> None:
    leave_files(tmp_path, b"1" * 16, 3)
    for _ in range(2):
        orphaned = OrphanedSessions(claim_orphans(tmp_path, HELLO, Faults()))
        orphaned.send(lambda _: False, 0.0)
        orphaned.close()

    assert on_disk(tmp_path) == [1, 2, 3, 4]


def sent_of_orphans(directory: Path, faults: Faults) -> list[bytes]:
    """Return what one round sends of the sessions that no process holds."""
    orphaned = OrphanedSessions(claim_orphans(directory, HELLO, faults))
    sent: list[bytes] = []

    def send(frames: bytes) -> bool:
        sent.append(frames)
        return True

    orphaned.send(send, 0.0)
    orphaned.close()
    return sent


def test_a_live_session_is_left_alone(make: Any, tmp_path: Path) -> None:
    spill, faults = make()
    spill.add(item(1))
    spill.flush()

    assert sent_of_orphans(tmp_path, faults) == []
    assert faults.counts.total() == 0


def test_a_foreign_file_is_told_and_passed_over(tmp_path: Path) -> None:
    foreign = tmp_path / f"test.0.{'a' * 32}.000000.spill"
    foreign.write_bytes(b"\x7fELF and so on")
    leave_files(tmp_path, b"1" * 16, 3)
    faults = Faults()

    assert len(sent_of_orphans(tmp_path, faults)) == 1  # the HELLO of the good one
    assert "is no spill file of gradwatch" in faults.last
    assert foreign.read_bytes() == b"\x7fELF and so on"
