"""Rest of a damaged file: all that can be read, and a start that says what cannot."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Entry, Received, Tick
from gradwatch_server.curves.facts import BlockFacts, SavedBlock
from gradwatch_server.storage.rows import (
    LogEntry,
    NewAlertEvent,
    RunSave,
    StorageError,
    StorageFault,
)
from gradwatch_server.storage.sqlite import database
from gradwatch_server.storage.sqlite.database import PAGE_BYTES
from gradwatch_server.storage.sqlite.store import DATABASE_NAME, SQLiteStore
from gradwatch_wire import Envelope, Stats, encode
from tests.support.engine import Start
from tests.support.records import stats_of

SESSION = bytes(range(16))

MOST_IN_PAGE = 4
"""Entries of 700 layers in a page."""

LEAF = 13
"""The first byte of a page with rows of a table."""


def sealed(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "little") + body


def line(step: int, layers: int) -> LogEntry:
    noise = random.Random(step)
    record: Stats = stats_of(step, [noise.random() for _ in range(layers)])
    envelope = Envelope(session=SESSION, seq=step + 1, low=1, record=record)
    return LogEntry("gpt", Entry(step, Received(envelope)), encode(envelope))


def fill(store: SQLiteStore) -> None:
    """Write 120 records of several sizes, one of more than a page; alert events; a state."""
    for step in range(120):
        store.log.append([line(step, 20_000 if step % 40 == 7 else 700)])
    store.log.append([LogEntry("gpt", Entry(7, Tick()))])
    store.alert_events.add(
        [
            NewAlertEvent(f"a{n}", "firing", f"r{n % 3}", f'{{"n": "{"y" * 2_000}"}}')
            for n in range(90)
        ]
    )
    for run in ("gpt", "other"):
        save = RunSave(run=run, body=sealed(b"run"), attempts={1: sealed(b"c" * 100_000)})
        store.state.save({"silences": sealed(b"s")}, [save])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of a store that was closed."""
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.find_loss()
    fill(store)
    store.close()
    return Path(store.name)


TABLES = {
    "log": "last, run, is_head, first, id, received_ns, body",
    "alert_events": "cursor, alert_id, state, run, body, stored_ns, num_bytes",
    "saved_state": "part, body",
    "saved_runs": "run, body",
    "saved_attempts": "*",
}


def contents(path: Path) -> dict[str, set[Any]]:
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    db.text_factory = bytes
    found = {
        name: set(db.execute(f"SELECT {columns} FROM {name}")) for name, columns in TABLES.items()
    }
    db.close()
    # A start notes the cursor that stands beside the file.
    found["saved_state"] = {row for row in found["saved_state"] if row[0] != b"last_cursor"}
    return found


def test_what_is_only_in_the_wal_is_read_from_there(tmp_path: Path) -> None:
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.db.execute("PRAGMA wal_autocheckpoint=0")
    fill(store)
    store.check()
    store.find_loss()
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    store.close()
    wal = tmp_path / "killed" / f"{DATABASE_NAME}-wal"
    assert wal.stat().st_size > 50 * PAGE_BYTES
    shutil.copytree(tmp_path / "killed", tmp_path / "torn")
    torn = tmp_path / "torn" / f"{DATABASE_NAME}-wal"
    overwrite(torn, wal.stat().st_size // 2, b"\xff" * 100)

    for place, least, most in (("killed", 121, 121), ("torn", 20, 110)):
        store = SQLiteStore.open(tmp_path / place, Clock())
        store.reset(StorageError("told to", StorageFault.DAMAGED))
        assert least <= len(list(store.log.entries("gpt"))) <= most
        store.close()


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path) -> None:
    """Flip 39 bits anywhere."""
    generator = random.Random(1)
    data = bytearray(path.read_bytes())
    for _ in range(39):
        data[generator.randrange(100, len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "truncated in a page": lambda path: os.truncate(path, path.stat().st_size - 1_234),
    "flipped bits": flip,
    "header": lambda path: overwrite(path, 0, b"\xff" * 100),
    "schema": lambda path: overwrite(path, PAGE_BYTES - 2_000, b"\xff" * 2_000),
    "first page": lambda path: overwrite(path, 0, b"\0" * PAGE_BYTES),
    "pointer map": lambda path: overwrite(path, PAGE_BYTES, b"\xee" * PAGE_BYTES),
    "root of the log": lambda path: overwrite(path, 2 * PAGE_BYTES, b"\xff" * PAGE_BYTES),
}


LEAST: dict[str | int, tuple[int, int]] = {
    "truncated": (45, 1),
    "flipped bits": (85, 60),
    "root of the log": (0, 91),
    3: (121, 1),  # the root of the alert events
    "header": (0, 1),
    "schema": (0, 1),
    "first page": (0, 1),
}
"""Entries and alert events that are read at the least; 100 and 40 where it does not say."""

ALL_LOST = ("header", "first page")
"""Nothing is left for SQLite to find a table by."""


def leaves_of_log(path: Path) -> list[int]:
    """Return pages of the file, counted from 0, that are leaves with records of the log."""
    data = path.read_bytes()
    pages = [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]
    records = [page.count(SESSION) for page in pages]
    return [at for at, page in enumerate(pages) if page[0] == LEAF and records[at] > 1]


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("damage", [*DAMAGE, *range(3, 30, 4)])
def test_a_damaged_file_keeps_what_can_be_read(path: Path, damage: str | int) -> None:
    """S41, S43: after a clean stop too; what is not read is not made up, and the start says it."""
    before = contents(path)
    if isinstance(damage, int):
        overwrite(path, damage * PAGE_BYTES, b"\xff" * PAGE_BYTES)
    else:
        DAMAGE[damage](path)
    broken = path.read_bytes()
    store = SQLiteStore.open(path.parent, Clock())
    loss = store.find_loss()
    read = [offset for offset, _ in store.log.entries("gpt")]
    store.log.append([LogEntry("gpt", Entry(9, Tick()))])
    at = store.log.last("gpt")
    cursor = store.alert_events.add([NewAlertEvent("new", "firing", "gpt", "{}")])
    told = [event.cursor for event in store.alert_events.after(0)]
    store.close()

    after = contents(path)
    after["log"] = {row for row in after["log"] if row[0] != at}
    after["alert_events"] = {row for row in after["alert_events"] if row[0] != cursor}
    assert cursor == 91
    kept = [
        own for own in path.parent.glob("*.damaged-*") if own.suffix[-4:] not in ("-wal", "-shm")
    ]
    if kept:
        assert kept[0].read_bytes()[100 : len(broken)] == broken[100:]
        for table, rows in after.items():
            assert rows <= before[table], table
        assert loss is not None
        assert kept[0].name in loss.text
    else:  # what SQLite does not see, the rows tell
        assert loss is None
    good = {row[0] for row in before["log"] & after["log"]}
    assert set(read) == good
    assert set(told) - {cursor} == {
        row[0] for row in before["alert_events"] & after["alert_events"]
    }
    least_read, least_told = LEAST.get(damage, (100, 40))
    assert len(read) >= least_read
    assert len(told) >= least_told
    if damage in ALL_LOST:
        assert loss is not None
        assert "not all was read" in loss.text
        assert f"sqlite3 {kept[0]} .recover" in loss.text


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_bad_page_costs_its_rows_only(path: Path, seed: int) -> None:
    generator = random.Random(seed)
    before = contents(path)
    for page in generator.sample(leaves_of_log(path), 2):
        overwrite(path, page * PAGE_BYTES, generator.randbytes(PAGE_BYTES))
    store = SQLiteStore.open(path.parent, Clock())
    loss = store.find_loss()
    store.close()

    after = contents(path)
    num_lost = len(before["log"]) - len(after["log"])
    assert 2 <= num_lost <= 2 * MOST_IN_PAGE
    assert all(after[table] == before[table] for table in TABLES if table != "log")
    assert loss is not None
    assert f"at least {num_lost} rows" in loss.text or "and the end of log" in loss.text


def test_curves_are_taken_over(path: Path) -> None:
    store = SQLiteStore.open(path.parent, Clock())
    facts = BlockFacts(0, 0, 0, 5, 9, 5)
    block = SavedBlock(facts, sealed(b"head"), b"l" * 100_000 + b"r")
    store.curves.save("gpt", 1, [block], sealed(b"layers"))
    store.curves.save("gpt", 2, [block])
    store.db.execute("DELETE FROM curves WHERE attempt = 2")
    store.reset(StorageError("told to", StorageFault.DAMAGED))

    found = store.curves.stored("gpt", 1).block(0, 0)
    assert found is not None
    assert found[:2] == (facts, sealed(b"head"))
    assert found.read(99_990, 100) == b"l" * 10 + b"r"
    (size,) = store.curves.sizes()
    assert size.num_bytes == 100_001 + len(sealed(b"head"))
    (count,) = store.db.row("SELECT count(*) FROM blocks")
    assert count == 1
    store.close()


def test_a_second_start_finds_nothing(path: Path) -> None:
    overwrite(path, 5 * PAGE_BYTES, b"\xff" * PAGE_BYTES)
    store = SQLiteStore.open(path.parent, Clock())
    assert store.find_loss() is not None
    store.close()
    store = SQLiteStore.open(path.parent, Clock())
    assert store.find_loss() is None
    store.close()

    assert len(list(path.parent.glob("*.damaged-*"))) == 1
    assert not list(path.parent.glob("*.new*"))


def test_a_process_that_is_killed_meanwhile_leaves_the_damaged_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one begins again; or takes up the new file, if only its name was missing."""
    overwrite(path, 5 * PAGE_BYTES, b"\xff" * PAGE_BYTES)

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    for step in ("salvage", "quarantine"):
        with monkeypatch.context() as patch:
            patch.setattr(database, step, kill)
            with pytest.raises(Killed):
                SQLiteStore.open(path.parent, Clock())
        assert path.exists()
    new = path.with_name(f"{DATABASE_NAME}.new")
    assert new.exists()
    path.rename(path.with_name("aside"))

    store = SQLiteStore.open(path.parent, Clock())
    assert len(list(store.log.entries("gpt"))) > 100
    assert not new.exists()
    store.close()


def test_a_log_that_sqlite_cannot_read_is_replaced_while_it_is_used(path: Path) -> None:
    store = SQLiteStore.open(path.parent, Clock())
    store.reset(StorageError("a page is bad", StorageFault.DAMAGED))

    assert len(list(store.log.entries("gpt"))) == 121
    assert (store.log.last("gpt"), store.alert_events.newest()) == (121, 90)
    store.log.append([LogEntry("gpt", Entry(9, Tick()))])
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("table", ["saved_runs", "saved_attempts", "saved_state"])
def test_a_run_whose_saved_state_is_lost_is_computed_from_the_log(start: Start, table: str) -> None:
    """S43: one bad page of what is saved costs no run, and no alert is told twice."""
    running = start()
    for run in ("one", "two", "three"):
        running.peer(run=run).attach().steps(0, *[1.0] * 10, float("nan"), *[1.0] * 9)
        running.shows(run, frames=20)
    events = running.events()
    running.close()
    with sqlite3.connect(running.path) as db:
        (page,) = db.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
        ).fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    overwrite(running.path, (page - 1) * PAGE_BYTES, b"\xff" * PAGE_BYTES)

    for is_damaged in (True, False):  # and a start after it has it all as well
        running = start()
        assert (running.published.loss is not None) == is_damaged
        assert running.published.num_apply_errors == 0
        for run in ("one", "two", "three"):
            view = running.view(run)
            assert view is not None
            assert (view.frames, view.stored) == (20, 21)
        assert running.events() == events
        running.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2.6 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2600k", "tmpfs", str(place)]
    if (
        os.geteuid() != 0
        or subprocess.run(command, check=False, capture_output=True).returncode != 0
    ):
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_costs_what_there_is_no_room_for(small_disk: Path, path: Path) -> None:
    """The damaged file stays, so all is still there; it is said that not all was taken over."""
    assert 2600 << 9 < path.stat().st_size < 2 << 20  # no room for two of them
    (small_disk / "data").mkdir()
    there = small_disk / "data" / DATABASE_NAME
    shutil.copy(path, there)
    overwrite(there, 5 * PAGE_BYTES, b"\xff" * PAGE_BYTES)
    store = SQLiteStore.open(there.parent, Clock())
    loss = store.find_loss()

    assert loss is not None
    assert "not all was read: database or disk is full" in loss.text
    assert list(there.parent.glob("*.damaged-*"))
    store.close()
