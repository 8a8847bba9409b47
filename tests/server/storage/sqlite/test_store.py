"""The SQLite file: its settings, its versions, and what is done about damage in it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Entry, Opened, Tick
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.checksums import of_row
from gradwatch_server.storage.encoding import EncodedEntry, pack_entries
from gradwatch_server.storage.rows import LogEntry, NewAlertEvent, StorageError, StorageFault
from gradwatch_server.storage.sqlite.database import PAGE_BYTES
from gradwatch_server.storage.sqlite.files import quarantine
from gradwatch_server.storage.sqlite.store import DATABASE_NAME, SQLiteStore
from gradwatch_wire import Hello, Kind

SESSION = bytes(range(16))
HELLO = Hello(run="gpt", rank=1, world=2, host="node", pid=7, versions={"torch": "2"}, job="9/0")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = open_store(tmp_path / "data")
    yield store
    store.close()


def open_store(directory: Path) -> SQLiteStore:
    return SQLiteStore.open(directory, Clock())


def entries_of(store: SQLiteStore) -> list[Entry]:
    return [entry for _, entry in store.log.entries("gpt")]


def directory_of(store: SQLiteStore) -> Path:
    return Path(store.name).parent


def reopened(store: SQLiteStore) -> SQLiteStore:
    store.close()
    return open_store(directory_of(store))


@pytest.mark.parametrize(
    ("pragma", "value"),
    [
        ("journal_mode", "wal"),
        ("synchronous", 2),
        ("page_size", 4096),
        ("auto_vacuum", 2),
        ("mmap_size", 0),
        ("wal_autocheckpoint", 4096),
    ],
)
def test_the_database_is_set_up_as_measured(store: SQLiteStore, pragma: str, value: object) -> None:
    """SQLite passes over a setting that comes too late without a word."""
    assert store.db.row(f"PRAGMA {pragma}") == (value,)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / DATABASE_NAME
    file.write_bytes(b"precious" * 1000)

    for _ in range(2):
        with pytest.raises(GradwatchError, match="not a database; move the file away"):
            open_store(tmp_path)
    assert file.read_bytes() == b"precious" * 1000


def test_nobody_else_may_read_what_is_kept(tmp_path: Path) -> None:
    """S44: whatever the umask, also what was set aside: tokens guard over HTTP what is in it."""
    before = os.umask(0)
    try:
        store = open_store(tmp_path / "data")
        store.log.append([LogEntry("gpt", Entry(1, Tick()))])
        store.reset(StorageError("damaged"))
        store.log.append([LogEntry("gpt", Entry(1, Tick()))])
    finally:
        os.umask(before)

    files = list((tmp_path / "data").iterdir())
    assert {f"{DATABASE_NAME}{own}" for own in ("", "-wal", "-shm")} < {file.name for file in files}
    assert len(files) >= 5
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    store.close()


def test_files_that_others_could_read_are_closed_to_them(store: SQLiteStore) -> None:
    Path(store.name).chmod(0o644)

    store = reopened(store)
    assert stat.S_IMODE(Path(store.name).stat().st_mode) == 0o600
    store.close()


def killed_copy(store: SQLiteStore, directory: Path) -> Path:
    """Copy what a killed process leaves: the file, and the WAL beside it."""
    directory.mkdir()
    for file in directory_of(store).glob(f"{DATABASE_NAME}*"):
        shutil.copy(file, directory)
    return directory / DATABASE_NAME


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_damage_is_found_after_an_unclean_stop(
    store: SQLiteStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    whole: bool,
) -> None:
    """S43: the file is kept under a dated name, and what is readable is taken over; of a large one
    only what nothing else would check is looked at."""
    if not whole:
        monkeypatch.setattr("gradwatch_server.storage.sqlite.database.CHECK_BYTES", 0)
    store.alert_events.add(
        [NewAlertEvent(f"a{i}", "firing", "gpt", "x" * 30_000) for i in range(60)]
    )
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.log.append([LogEntry("gpt", Entry(1, Tick()))])
    path = killed_copy(store, tmp_path / "killed")
    data = path.read_bytes()
    at = data.rindex(b"x" * 3_000) // PAGE_BYTES * PAGE_BYTES
    path.write_bytes(data[:at] + b"\xff" * 100 + data[at + 100 :])

    again = open_store(path.parent)

    (kept,) = path.parent.glob("*.damaged-*")
    assert "what can be read is taken over" in caplog.text
    assert kept.read_bytes()[at : at + 100] == b"\xff" * 100
    assert entries_of(again) == [Entry(1, Tick())]
    (left,) = again.db.row("SELECT count(*) FROM alert_events")
    assert 57 <= left < 60
    loss = again.find_loss()
    assert loss is not None
    assert f"is kept as {kept.name}; 1 rows of the log, {left} alert events" in loss.text
    assert "could not be read" in loss.text
    assert again.alert_events.add([NewAlertEvent("new", "firing", "gpt", "{}")]) == 61
    again.log.append([LogEntry("gpt", Entry(1, Tick()))])
    again.close()


def test_a_good_file_is_taken_up_after_an_unclean_stop(store: SQLiteStore, tmp_path: Path) -> None:
    store.log.append([LogEntry("gpt", Entry(1, Tick())), LogEntry("gpt", Entry(2, Tick()))])
    again = open_store(killed_copy(store, tmp_path / "killed").parent)

    assert entries_of(again) == [Entry(1, Tick()), Entry(2, Tick())]
    assert not list(directory_of(again).glob("*.damaged-*"))
    again.close()


def test_two_damaged_files_of_one_second_are_both_kept(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    for text in ("one", "two", "three"):
        path.write_text(text)
        quarantine(path)

    assert sorted(file.read_text() for file in tmp_path.iterdir()) == ["one", "three", "two"]


def test_damaged_rows_cost_only_themselves(
    store: SQLiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.log.append([LogEntry("gpt", Entry(1, Opened(SESSION, HELLO)))])
    good = pack_entries([(9, EncodedEntry(1, 103, None, None))])
    damaged_entry = pack_entries([(2, EncodedEntry(1, Kind.STATS, SESSION, b"\xc1garbage"))])
    for last, body, checksum in [
        (2, damaged_entry, None),  # of which only the entry is damaged
        (3, b"\xc1garbage", None),
        (4, good[:-1], None),
        (5, good, 7),
        (6, "text", 0),
    ]:
        row = ("gpt", 0, last, last, 1)
        right = of_row(*row, body) if checksum is None and isinstance(body, bytes) else checksum
        store.db.execute(
            "INSERT INTO log (run, is_head, first, last, received_ns, body, checksum, num_bytes)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 1)",
            (*row, body, right),
        )
    store = reopened(store)
    store.log.append([LogEntry("gpt", Entry(3, Tick()))])

    assert [entry.body for entry in entries_of(store)] == [Opened(SESSION, HELLO), Tick()]
    told = [record.args[0] for record in caplog.records if "cannot be read" in record.msg]  # type: ignore[index]  # a tuple
    assert told == list(range(2, 7))
    store.close()


def test_a_statement_that_fails_says_what_kind_of_fault_it_is(store: SQLiteStore) -> None:
    with sqlite3.connect(store.name) as other:
        other.execute("BEGIN IMMEDIATE")
        store.db.execute("PRAGMA busy_timeout=1")
        with pytest.raises(StorageError, match="locked") as caught:
            store.log.append([LogEntry("gpt", Entry(1, Tick()))])
        assert caught.value.fault is StorageFault.BUSY
        other.rollback()
    other.close()
    store.log.append([LogEntry("gpt", Entry(1, Tick()))])
    store.close()
    with pytest.raises(StorageError, match="is closed"):
        store.log.append([LogEntry("gpt", Entry(1, Tick()))])
