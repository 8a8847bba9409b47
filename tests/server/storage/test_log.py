"""The log: what is committed is read back, what fails leaves nothing, one aggregator at a time."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import (
    Body,
    Entry,
    Forgotten,
    Gap,
    Lost,
    Opened,
    Received,
    RulesSet,
    Tick,
)
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.sqlite.database import PAGE_BYTES, SCHEMA_VERSION, quarantine
from gradwatch_server.storage.sqlite.log import DATABASE_NAME, LOCK_NAME, RECORD_KINDS, Line, Log
from gradwatch_wire import (
    SEQUENCED,
    Bye,
    Column,
    Envelope,
    Event,
    Gains,
    Hello,
    Kind,
    Manifest,
    Record,
    decode_record,
    encode,
)
from gradwatch_wire.limits import MAX_SEQ, MAX_STEP

SESSION = bytes(range(16))
HELLO = Hello(run="gpt", rank=1, world=2, host="node", pid=7, versions={"torch": "2"}, job="9/0")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "data")
    yield log
    log.close()


def received(record: Record, seq: int = 1) -> Line:
    """Return the line of a record as it came."""
    envelope = Envelope(session=SESSION, seq=seq, low=1, time_ns=5, record=record)
    return Line(Entry(seq, Received(envelope)), encode(envelope)[1])


def damaged_in_the_middle(data: bytes) -> bytes:
    """Return a database with one page of nonsense."""
    middle = len(data) * 3 // 4 // PAGE_BYTES * PAGE_BYTES  # the records are there
    return data[:middle] + b"\xff" * PAGE_BYTES + data[middle + PAGE_BYTES :]


def reopened(log: Log) -> Log:
    log.close()
    return Log(log.path.parent)


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


def test_every_kind_of_entry_is_read_back_as_it_was(log: Log, make_stats: Any) -> None:
    """With its time, in the order it was written, also by the next process."""
    stats = make_stats(MAX_STEP, [5e-324, -0.0], loss=1e308)
    lines = [
        Line(Entry(1 << 62, Opened(SESSION, HELLO))),
        *(received(record, seq) for seq, record in enumerate([*RECORDS, stats], 1)),
        Line(Entry(6, Gap(SESSION, 7, MAX_SEQ))),
        Line(Entry(7, Lost(SESSION))),
        Line(Entry(8, Tick())),
        Line(Entry(9, RulesSet(Rules().model_dump(mode="json")))),
        Line(Entry(10, Forgotten("gpt", 3))),
    ]
    log.append(lines)
    assert list(log.replay()) == [line.entry for line in lines]

    log = reopened(log)

    assert list(log.replay()) == [line.entry for line in lines]
    log.close()


def test_a_record_is_kept_byte_by_byte(log: Log, make_stats: Any) -> None:
    """NaN payloads, and keys of a newer version, survive although this one cannot name them."""
    line = received(make_stats(1, [float("nan"), float("-inf")]))
    fields = msgpack.unpackb(line.raw)
    fields[5]["of a newer version"] = [1, 2]
    raw = msgpack.packb(fields)
    log.append([Line(Entry(1, Received(decode_record(raw))), raw)])
    (payload,) = log._db.execute("SELECT payload FROM log").fetchone()

    assert payload == raw


def test_a_kind_spelt_at_length_is_read_back(log: Log) -> None:
    """msgpack has several ways to write an array of six and a kind; all of them are valid."""
    raw = encode(Envelope(session=SESSION, seq=1, low=1, record=Bye()))[1]
    for head in (
        b"\xdc\x00\x06\x08",
        b"\xdd\x00\x00\x00\x06\x08",
        b"\x96\xcc\x08",
        b"\x96\xcd\x00\x08",
    ):
        spelt = head + raw[2:]
        log.append([Line(Entry(1, Received(decode_record(spelt))), spelt)])
    entries = list(log.replay())

    assert [entry.body.envelope.record for entry in entries] == [Bye()] * 4  # type: ignore[union-attr]  # as written


def test_every_sequenced_kind_can_be_logged() -> None:
    """A kind that is added to the wire must be added here, or its records would be refused."""
    assert set(RECORD_KINDS.values()) == SEQUENCED


def test_a_token_is_not_written_to_disk(log: Log) -> None:
    """It opens the door and is no fact of the run; all else of the HELLO is kept."""
    hello = Hello(run="gpt", rank=0, world=1, host="node", token="hunter2-secret")
    raw = encode(Envelope(session=SESSION, record=hello))[1]
    log.append([Line(Entry(1, Opened(SESSION, hello)), raw)])
    directory = log.path.parent
    (entry,) = log.replay()

    assert entry.body == Opened(SESSION, Hello(run="gpt", rank=0, world=1, host="node"))
    log.close()
    assert not any(b"hunter2" in file.read_bytes() for file in directory.iterdir())
    Log(directory).close()


def test_a_full_disk_fails_and_writes_nothing_of_the_batch(log: Log, make_stats: Any) -> None:
    """All lines or none; once there is room again the log goes on."""
    log.append([received(RECORDS[0])])
    (pages,) = log._db.execute("PRAGMA page_count").fetchone()
    log._db.execute(f"PRAGMA max_page_count={pages + 2}")
    batch = [received(make_stats(step, [1.0] * 4_000), step + 2) for step in range(20)]

    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError, match="full"):
            log.append(batch)
    assert len(list(log.replay())) == 1
    log._db.execute("PRAGMA max_page_count=100000")
    log.append(batch)

    assert [entry.received_ns for entry in log.replay()] == [1, *range(2, 22)]
    assert log._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_full_disk_fails_for_alerts_too(log: Log) -> None:
    """None of the batch is in the store then."""
    log.add_alert_events([("a", "firing", "gpt", "{}")])
    (pages,) = log._db.execute("PRAGMA page_count").fetchone()
    log._db.execute(f"PRAGMA max_page_count={pages}")

    with pytest.raises(sqlite3.OperationalError, match="full"):
        log.add_alert_events([(f"b{i}", "firing", "gpt", "x" * 9_000) for i in range(9)])

    assert log.add_alert_events([]) == 1


def test_an_alert_event_is_stored_once(log: Log) -> None:
    """Derived again after a crash it keeps its cursor, and takes no number away."""
    first = [("a", "firing", "gpt", "1"), ("a", "resolved", "gpt", "2")]
    assert log.add_alert_events([]) == 0
    assert log.add_alert_events(first) == 2

    assert log.add_alert_events([*first, ("b", "firing", "gpt", "3")]) == 3

    rows = log._db.execute("SELECT cursor, alert_id, state, body FROM alert_events").fetchall()
    assert rows == [(1, "a", "firing", "1"), (2, "a", "resolved", "2"), (3, "b", "firing", "3")]


def test_a_cursor_is_never_used_again(log: Log) -> None:
    """Not even when the newest events are deleted: a subscriber may have seen them."""
    log.add_alert_events([("a", "firing", "gpt", "1"), ("b", "firing", "gpt", "2")])
    log._db.execute("DELETE FROM alert_events WHERE cursor = 2")

    assert log.add_alert_events([("c", "firing", "gpt", "3")]) == 3


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
def test_the_database_is_set_up_as_measured(log: Log, pragma: str, value: object) -> None:
    """SQLite passes over a setting that comes too late without a word."""
    assert log._db.execute(f"PRAGMA {pragma}").fetchone() == (value,)


def test_a_second_aggregator_on_the_directory_is_refused(log: Log) -> None:
    """One line, with the pid of the one that has it; the log of the first goes on."""
    with pytest.raises(GradwatchError) as caught:
        Log(log.path.parent)

    assert str(caught.value) == (
        f"the data directory {log.path.parent} is in use by another aggregator "
        f"(pid {os.getpid()}); stop it, or choose another directory with --data"
    )
    log.append([received(Bye())])


def test_the_directory_is_free_again_afterwards(log: Log) -> None:
    """After a clean end, and after the holder was killed."""
    log = reopened(log)
    log.close()
    code = "import os, sys, pathlib; from gradwatch_server.storage.sqlite.log import Log; "
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            code + "Log(pathlib.Path(sys.argv[1])); os._exit(9)",
            log.path.parent,
        ],
        check=False,
    )
    assert killed.returncode == 9

    Log(log.path.parent).close()


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
        Log(directory)
    assert "\n" not in str(e.value)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """It may be something else of value; the lock is free again."""
    file = tmp_path / DATABASE_NAME
    file.write_bytes(b"precious" * 1000)

    for _ in range(2):
        with pytest.raises(GradwatchError, match="not a database; move the file away"):
            Log(tmp_path)
    assert file.read_bytes() == b"precious" * 1000


def test_a_log_of_another_version_is_refused(log: Log) -> None:
    """An older program must not write into what it does not know."""
    log._db.execute("PRAGMA user_version=7")
    log.close()

    with pytest.raises(GradwatchError, match="schema version 7, this gradwatch reads up to 2"):
        Log(log.path.parent)


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
    log = Log(tmp_path)

    assert list(log.replay()) == [Entry(5, Opened(SESSION, HELLO))]
    assert log.db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    times = log.db.execute("SELECT cursor, stored_ns FROM alert_events").fetchall()
    assert times[0] == (3, 1_795_271_400 * 10**9)
    assert abs(times[1][1] - time.time_ns()) < 60 * 10**9
    log.append([Line(Entry(6, Tick()))])
    assert [offset for offset, _ in log.entries(0)] == [7, 8]
    assert log.add_alert_events([("c", "firing", "gpt", "{}")]) == 5
    log.close()


def test_an_update_that_is_cut_off_begins_again(tmp_path: Path) -> None:
    """Each version is one transaction with its number."""
    with sqlite3.connect(tmp_path / DATABASE_NAME) as db:
        db.executescript(FIRST_SCHEMA + "CREATE TABLE saved_frames (in_the_way);")
    db.close()
    with pytest.raises(GradwatchError, match="saved_frames already exists"):
        Log(tmp_path)
    with sqlite3.connect(tmp_path / DATABASE_NAME) as db:
        columns = [name for _, name, *_ in db.execute("PRAGMA table_info(alert_events)")]
        db.execute("DROP TABLE saved_frames")
    db.close()
    assert "stored_ns" not in columns

    Log(tmp_path).close()


def killed_copy(log: Log, directory: Path) -> Path:
    """Copy what a killed process leaves: the file, and the WAL beside it."""
    directory.mkdir()
    for file in log.path.parent.glob(f"{DATABASE_NAME}*"):
        shutil.copy(file, directory)
    return directory / DATABASE_NAME


@pytest.mark.parametrize("whole", [True, False])
def test_damage_is_found_after_an_unclean_stop(
    log: Log,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    whole: bool,
) -> None:
    """The file is kept under a dated name, and a new one is begun; of a large file only what
    nothing else would check is read."""
    if not whole:
        monkeypatch.setattr("gradwatch_server.storage.sqlite.database.CHECK_BYTES", 0)
    log.add_alert_events([(f"a{i}", "firing", "gpt", "x" * 30_000) for i in range(60)])
    log.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    log.append([Line(Entry(1, Tick()))])
    path = killed_copy(log, tmp_path / "killed")
    data = path.read_bytes()
    at = data.rindex(b"x" * 30_000) // PAGE_BYTES * PAGE_BYTES
    path.write_bytes(data[:at] + b"\xff" * 100 + data[at + 100 :])

    again = Log(path.parent)

    (kept,) = path.parent.glob("*.damaged-*")
    assert f"kept as {kept.name}, begun anew" in caplog.text
    assert b"x" * 30_000 in kept.read_bytes()
    assert (list(again.replay()), again.add_alert_events([])) == ([], 0)
    again.append([Line(Entry(1, Tick()))])
    again.close()


def test_a_good_file_is_taken_up_after_an_unclean_stop(log: Log, tmp_path: Path) -> None:
    """As it was, what was only in the WAL too."""
    log.append([Line(Entry(1, Tick())), Line(Entry(2, Tick()))])
    again = Log(killed_copy(log, tmp_path / "killed").parent)

    assert list(again.replay()) == [Entry(1, Tick()), Entry(2, Tick())]
    assert not list(again.path.parent.glob("*.damaged-*"))
    again.close()


def test_two_damaged_files_of_one_second_are_both_kept(tmp_path: Path) -> None:
    """Nothing is ever written over."""
    path = tmp_path / DATABASE_NAME
    for text in ("one", "two", "three"):
        path.write_text(text)
        quarantine(path, "a test")

    assert sorted(file.read_text() for file in tmp_path.iterdir()) == ["one", "three", "two"]


def test_damaged_rows_cost_only_themselves(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """They are named in the log and passed over; the rest is read."""
    log.append([Line(Entry(1, Opened(SESSION, HELLO)))])
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
        log._db.execute(
            "INSERT INTO log (received_ns, kind, session, payload) VALUES (2, ?, ?, ?)",
            (kind, session, payload),
        )
    log = reopened(log)
    log.append([Line(Entry(3, Tick()))])

    assert [entry.body for entry in log.replay()] == [Opened(SESSION, HELLO), Tick()]
    told = [record.args[0] for record in caplog.records if "cannot be read" in record.msg]  # type: ignore[index]  # a tuple
    assert told == list(range(2, 10))
    log.close()


def test_damaged_pages_are_an_error_not_a_short_log(log: Log, make_stats: Any) -> None:
    """A log that ends early would be taken for the truth."""
    log.append([received(make_stats(step, [1.0] * 500), step + 1) for step in range(200)])
    log.close()
    log.path.write_bytes(damaged_in_the_middle(log.path.read_bytes()))
    damaged = Log(log.path.parent)

    with pytest.raises(sqlite3.DatabaseError):
        list(damaged.replay())
    damaged.close()


def test_a_record_without_its_bytes_is_a_fault_of_ours(log: Log) -> None:
    """It is not written as something else."""
    body: Body = Received(Envelope(session=SESSION, seq=1, record=Bye()))
    with pytest.raises(AssertionError, match="needs the bytes"):
        log.append([Line(Entry(1, body))])

    assert list(log.replay()) == []


def test_the_lock_file_says_who_holds_it(log: Log) -> None:
    """For a person who looks."""
    assert (log.path.parent / LOCK_NAME).read_text() == f"{os.getpid()}\n"
