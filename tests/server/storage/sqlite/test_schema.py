"""A data directory of another version, which is refused as it is."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Entry, Tick
from gradwatch_server.storage.rows import LogEntry, StorageError, StorageFault
from gradwatch_server.storage.schema import SCHEMA_VERSION
from gradwatch_server.storage.sqlite.store import DATABASE_NAME, SQLiteStore
from tests.support.command import run_command

OTHERS = (0, *range(1, SCHEMA_VERSION), SCHEMA_VERSION + 1)
"""Numbers that are not of this version; 0 is that of a database which is not gradwatch's."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory that an aggregator left."""
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.find_loss()
    store.log.append([LogEntry("gpt", Entry(1, Tick()))])
    store.close()
    return tmp_path / "data"


def number(directory: Path, version: int) -> bytes:
    """Give the database another number, and return its bytes."""
    path = directory / DATABASE_NAME
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version={version}")
    return path.read_bytes()


@pytest.mark.parametrize("version", OTHERS)
def test_another_version_is_refused_and_left_as_it_is(directory: Path, version: int) -> None:
    """An older one as well as a newer one."""
    before = number(directory, version)
    with pytest.raises(StorageError, match=f"it has schema version {version}, this") as caught:
        SQLiteStore.open(directory, Clock())

    assert caught.value.fault is StorageFault.UNUSABLE
    assert (directory / DATABASE_NAME).read_bytes() == before
    number(directory, SCHEMA_VERSION)
    store = SQLiteStore.open(directory, Clock())
    assert [entry for _, entry in store.log.entries("gpt")] == [Entry(1, Tick())]
    store.close()


def test_one_that_is_damaged_is_not_read_either(directory: Path) -> None:
    before = number(directory, SCHEMA_VERSION - 1)
    damaged = before[: len(before) * 2 // 3]
    (directory / DATABASE_NAME).write_bytes(damaged)
    with pytest.raises(StorageError, match=f"it has schema version {SCHEMA_VERSION - 1}, this"):
        SQLiteStore.open(directory, Clock())

    assert (directory / DATABASE_NAME).read_bytes() == damaged
    assert not list(directory.glob("*.damaged-*"))


def test_one_that_is_in_the_wal_only_is_refused(directory: Path, tmp_path: Path) -> None:
    (directory / DATABASE_NAME).unlink()
    store = SQLiteStore.open(directory, Clock())
    store.db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    shutil.copytree(directory, tmp_path / "killed")
    store.close()

    with pytest.raises(StorageError, match=f"it has schema version {SCHEMA_VERSION + 1}, this"):
        SQLiteStore.open(tmp_path / "killed", Clock())


@pytest.mark.slow
def test_the_command_ends_in_one_line_that_says_what_to_do(directory: Path, tmp_path: Path) -> None:
    number(directory, SCHEMA_VERSION - 1)
    ports = ("--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0")
    done = run_command(tmp_path, "serve", "--data", str(directory), *ports)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"gradwatch: cannot open the log {directory / DATABASE_NAME}: it has schema version "
        f"{SCHEMA_VERSION - 1}, this gradwatch writes {SCHEMA_VERSION} and reads no other; nothing "
        "was changed: move the data directory away, or choose another with --data\n"
    )
