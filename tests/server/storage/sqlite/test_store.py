"""The log: what is committed is read back, what fails leaves nothing, one aggregator at a time."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import (
    Entry,
    Opened,
    Received,
    Tick,
)
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.sqlite.database import PAGE_BYTES, quarantine
from gradwatch_server.storage.sqlite.lock import LOCK_NAME
from gradwatch_server.storage.sqlite.schema import SCHEMA_VERSION
from gradwatch_server.storage.sqlite.store import DATABASE_NAME, SQLiteStore
from gradwatch_server.storage.store import Line, NewAlertEvent, StorageError
from gradwatch_wire import (
    Bye,
    Column,
    Envelope,
    Event,
    Gains,
    Hello,
    Kind,
    Manifest,
    Record,
    encode,
)

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
    return [entry for _, entry in store.log.entries()]


def directory_of(store: SQLiteStore) -> Path:
    return Path(store.name).parent


def received(record: Record, seq: int = 1) -> Line:
    """Return the line of a record as it came."""
    envelope = Envelope(session=SESSION, seq=seq, low=1, time_ns=5, record=record)
    return Line(Entry(seq, Received(envelope)), encode(envelope)[1])


def damaged_in_the_middle(data: bytes) -> bytes:
    """Return a database with one page of nonsense."""
    middle = len(data) * 3 // 4 // PAGE_BYTES * PAGE_BYTES  # the records are there
    return data[:middle] + b"\xff" * PAGE_BYTES + data[middle + PAGE_BYTES :]


def reopened(store: SQLiteStore) -> SQLiteStore:
    store.close()
    return open_store(directory_of(store))


RECORDS: list[Record] = [
    Manifest(
        manifest_id=1,
        names=("a", "é\0"),
        numel=Column.pack("<u8", [1, 2]),
        dtypes=("float32", "bfloat16"),
        groups={"g": (1,)},
        order="forward",
    ),
    Gains(step=3, blocks=("x",), norm_type="l2", norms=Column.pack("<f8", [float("inf")])),
    Event(name="mark", step=4, data={"k": float("inf"), "n": None, "i": 1 << 63}),
    Bye(reason="exception"),
]


def test_a_token_is_not_written_to_disk(store: SQLiteStore) -> None:
    """It opens the door and is no fact of the run; all else of the HELLO is kept."""
    hello = Hello(run="gpt", rank=0, world=1, host="node", token="hunter2-secret")
    raw = encode(Envelope(session=SESSION, record=hello))[1]
    store.log.append([Line(Entry(1, Opened(SESSION, hello)), raw)])
    directory = directory_of(store)
    (entry,) = entries_of(store)

    assert entry.body == Opened(SESSION, Hello(run="gpt", rank=0, world=1, host="node"))
    store.close()
    assert not any(b"hunter2" in file.read_bytes() for file in directory.iterdir())
    open_store(directory).close()


def test_a_full_disk_fails_and_writes_nothing_of_the_batch(
    store: SQLiteStore, make_stats: Any
) -> None:
    """All lines or none; once there is room again the log goes on."""
    store.log.append([received(RECORDS[0])])
    (pages,) = store.db.execute("PRAGMA page_count").fetchone()
    store.db.execute(f"PRAGMA max_page_count={pages + 2}")
    batch = [received(make_stats(step, [1.0] * 4_000), step + 2) for step in range(20)]

    for _ in range(3):
        with pytest.raises(StorageError, match="full"):
            store.log.append(batch)
    assert len(entries_of(store)) == 1
    store.db.execute("PRAGMA max_page_count=100000")
    store.log.append(batch)

    assert [entry.received_ns for entry in entries_of(store)] == [1, *range(2, 22)]
    assert store.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    ("pragma", "value"),
    [
        ("journal_mode", "wal"),
        ("synchronous", 2),
        ("page_size", 65536),
        ("auto_vacuum", 2),
        ("mmap_size", 0),
        ("wal_autocheckpoint", 256),
    ],
)
def test_the_database_is_set_up_as_measured(store: SQLiteStore, pragma: str, value: object) -> None:
    """SQLite passes over a setting that comes too late without a word."""
    assert store.db.execute(f"PRAGMA {pragma}").fetchone() == (value,)


def test_a_second_aggregator_on_the_directory_is_refused(store: SQLiteStore) -> None:
    """One line, with the pid of the one that has it; the log of the first goes on."""
    with pytest.raises(GradwatchError) as caught:
        open_store(directory_of(store))

    assert str(caught.value) == (
        f"the data directory {directory_of(store)} is in use by another aggregator "
        f"(pid {os.getpid()}); stop it, or choose another directory with --data"
    )
    store.log.append([received(Bye())])


@pytest.mark.parametrize("what", ["a file", "below a file", "a NUL", "read-only"])
def test_an_unusable_directory_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    """Whatever it is that is in the way."""
    directory = tmp_path / "data"
    if what == "a file":
        directory.write_text("")
    elif what == "below a file":
        (tmp_path / "file").write_text("")
        directory = tmp_path / "file" / "data"
    elif what == "a NUL":
        directory = tmp_path / "da\0ta"
    elif os.geteuid() == 0:
        directory = Path("/sys/gradwatch")  # where not even root may write
    else:
        directory.mkdir()
        directory.chmod(stat.S_IRUSR | stat.S_IXUSR)

    with pytest.raises(
        GradwatchError, match=r"^cannot use the data directory .*choose one with"
    ) as e:
        open_store(directory)
    assert "\n" not in str(e.value)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """It may be something else of value; the lock is free again."""
    file = tmp_path / DATABASE_NAME
    file.write_bytes(b"precious" * 1000)

    for _ in range(2):
        with pytest.raises(GradwatchError, match="not a database; move the file away"):
            open_store(tmp_path)
    assert file.read_bytes() == b"precious" * 1000


def test_a_log_of_another_version_is_refused(store: SQLiteStore) -> None:
    """An older program must not write into what it does not know."""
    store.db.execute("PRAGMA user_version=7")
    store.close()

    with pytest.raises(GradwatchError, match="schema version 7, this gradwatch reads up to 2"):
        open_store(directory_of(store))


FIRST_SCHEMA = """
CREATE TABLE log (
    log_offset INTEGER PRIMARY KEY, received_ns INTEGER NOT NULL, kind INTEGER NOT NULL,
    session BLOB, payload BLOB
);
CREATE TABLE alert_events (
    cursor INTEGER PRIMARY KEY AUTOINCREMENT, alert_id TEXT NOT NULL, state TEXT NOT NULL,
    run TEXT NOT NULL, body TEXT NOT NULL, UNIQUE (alert_id, state)
);
CREATE INDEX alert_events_of_run ON alert_events (run, cursor);
"""


@pytest.mark.parametrize("version", [0, 1])
def test_a_log_of_an_older_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    """With all that is in it; times of alert events are those they tell of."""
    with sqlite3.connect(tmp_path / DATABASE_NAME) as db:
        db.executescript(FIRST_SCHEMA)
        raw = encode(Envelope(session=SESSION, record=HELLO))[1]
        db.execute("INSERT INTO log VALUES (7, 5, 1, ?, ?)", (SESSION, raw))
        db.executemany(
            "INSERT INTO alert_events VALUES (?, ?, 'firing', 'gpt', ?)",
            [(3, "a", '{"updated_at": "2026-11-21T14:30:00.000+00:00"}'), (4, "b", "no json")],
        )
        db.execute(f"PRAGMA user_version={version}")
    db.close()
    store = open_store(tmp_path)

    assert entries_of(store) == [Entry(5, Opened(SESSION, HELLO))]
    assert store.db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    times = store.db.execute("SELECT cursor, stored_ns FROM alert_events").fetchall()
    assert times[0] == (3, 1_795_271_400 * 10**9)
    assert abs(times[1][1] - time.time_ns()) < 60 * 10**9
    store.log.append([Line(Entry(6, Tick()))])
    assert [offset for offset, _ in store.log.entries()] == [7, 8]
    assert store.alert_events.add([NewAlertEvent("c", "firing", "gpt", "{}")]) == 5
    store.close()


def test_an_update_that_is_cut_off_begins_again(tmp_path: Path) -> None:
    """Each version is one transaction with its number."""
    with sqlite3.connect(tmp_path / DATABASE_NAME) as db:
        db.executescript(FIRST_SCHEMA + "CREATE TABLE saved_frames (in_the_way);")
    db.close()
    with pytest.raises(GradwatchError, match="saved_frames already exists"):
        open_store(tmp_path)
    with sqlite3.connect(tmp_path / DATABASE_NAME) as db:
        columns = [name for _, name, *_ in db.execute("PRAGMA table_info(alert_events)")]
        db.execute("DROP TABLE saved_frames")
    db.close()
    assert "stored_ns" not in columns

    open_store(tmp_path).close()


def killed_copy(store: SQLiteStore, directory: Path) -> Path:
    """Copy what a killed process leaves: the file, and the WAL beside it."""
    directory.mkdir()
    for file in directory_of(store).glob(f"{DATABASE_NAME}*"):
        shutil.copy(file, directory)
    return directory / DATABASE_NAME


@pytest.mark.parametrize("whole", [True, False])
def test_damage_is_found_after_an_unclean_stop(
    store: SQLiteStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    whole: bool,
) -> None:
    """The file is kept under a dated name, and a new one is begun; of a large file only what
    nothing else would check is read."""
    if not whole:
        monkeypatch.setattr("gradwatch_server.storage.sqlite.database.CHECK_BYTES", 0)
    store.alert_events.add(
        [NewAlertEvent(f"a{i}", "firing", "gpt", "x" * 30_000) for i in range(60)]
    )
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.log.append([Line(Entry(1, Tick()))])
    path = killed_copy(store, tmp_path / "killed")
    data = path.read_bytes()
    at = data.rindex(b"x" * 30_000) // PAGE_BYTES * PAGE_BYTES
    path.write_bytes(data[:at] + b"\xff" * 100 + data[at + 100 :])

    again = open_store(path.parent)

    (kept,) = path.parent.glob("*.damaged-*")
    assert f"kept as {kept.name}, begun anew" in caplog.text
    assert b"x" * 30_000 in kept.read_bytes()
    assert (entries_of(again), again.alert_events.add([])) == ([], 0)
    again.log.append([Line(Entry(1, Tick()))])
    again.close()


def test_a_good_file_is_taken_up_after_an_unclean_stop(store: SQLiteStore, tmp_path: Path) -> None:
    """As it was, what was only in the WAL too."""
    store.log.append([Line(Entry(1, Tick())), Line(Entry(2, Tick()))])
    again = open_store(killed_copy(store, tmp_path / "killed").parent)

    assert entries_of(again) == [Entry(1, Tick()), Entry(2, Tick())]
    assert not list(directory_of(again).glob("*.damaged-*"))
    again.close()


def test_two_damaged_files_of_one_second_are_both_kept(tmp_path: Path) -> None:
    """Nothing is ever written over."""
    path = tmp_path / DATABASE_NAME
    for text in ("one", "two", "three"):
        path.write_text(text)
        quarantine(path, "a test")

    assert sorted(file.read_text() for file in tmp_path.iterdir()) == ["one", "three", "two"]


def test_damaged_rows_cost_only_themselves(
    store: SQLiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """They are named in the log and passed over; the rest is read."""
    store.log.append([Line(Entry(1, Opened(SESSION, HELLO)))])
    for kind, session, payload in [
        (Kind.STATS, SESSION, b"\xc1garbage"),
        (Kind.STATS, SESSION, None),
        (Kind.HELLO, SESSION, b""),
        (101, SESSION, b"\x90"),
        (101, SESSION, None),
        (104, None, b"{"),
        (99, None, None),
        ("text", None, None),
    ]:
        store.db.execute(
            "INSERT INTO log (received_ns, kind, session, payload) VALUES (2, ?, ?, ?)",
            (kind, session, payload),
        )
    store = reopened(store)
    store.log.append([Line(Entry(3, Tick()))])

    assert [entry.body for entry in entries_of(store)] == [Opened(SESSION, HELLO), Tick()]
    told = [record.args[0] for record in caplog.records if "cannot be read" in record.msg]  # type: ignore[index]  # a tuple
    assert told == list(range(2, 10))
    store.close()


def test_damaged_pages_are_an_error_not_a_short_log(store: SQLiteStore, make_stats: Any) -> None:
    """A log that ends early would be taken for the truth."""
    store.log.append([received(make_stats(step, [1.0] * 500), step + 1) for step in range(200)])
    store.close()
    path = Path(store.name)
    path.write_bytes(damaged_in_the_middle(path.read_bytes()))
    damaged = open_store(directory_of(store))

    with pytest.raises(StorageError):
        entries_of(damaged)
    damaged.close()


def test_the_lock_file_says_who_holds_it(store: SQLiteStore) -> None:
    """For a person who looks."""
    assert (directory_of(store) / LOCK_NAME).read_text() == f"{os.getpid()}\n"
