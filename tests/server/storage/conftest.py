"""The places that a store can be in, for the contract that every implementation keeps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.storage.postgres.database import PostgresStore
from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_server.storage.sqlite.database import PAGE_BYTES
from gradwatch_server.storage.sqlite.store import DATABASE_NAME, SQLiteStore
from gradwatch_server.storage.store import Store
from tests.server.storage.stopping import (
    Killed,
    MemoryStore,
    StoppingDatabase,
    StoppingPostgres,
    database_of,
)
from tests.support.postgres import PostgresServer
from tests.support.postgres_database import FreshDatabase


class Place(Protocol):
    """Place of one store; it outlives the processes that open it.

    A new implementation of `Store` adds one of these to `PLACES`, and has to pass the contract.
    """

    @property
    def is_exclusive(self) -> bool:
        """Exclusiveness: true if a second writer is refused while the first has it."""

    @property
    def has_readers(self) -> bool:
        """Concurrency: true if other threads may read while it is written."""

    def open(self) -> Store:
        """Open the store as a new process does."""

    def kill(self, store: Store) -> None:
        """Lose a store that was not closed, with what it had not committed."""

    def stop_at(self, store: Store, write: int) -> None:
        """Raise `Killed` at the write with this number, before or after it was done."""

    def fill(self, store: Store) -> None:
        """Leave no space for anything new."""

    def make_room(self, store: Store) -> None:
        """Leave space again."""

    def damage(self, store: Store) -> None:
        """Close a store of many entries, and put nonsense where some of them are."""


class SQLitePlace:
    """Base of both places of SQLite."""

    def stop_at(self, store: Store, write: int) -> None:
        database_of(store).left = write

    def fill(self, store: Store) -> None:
        database = database_of(store)
        database.execute(f"PRAGMA max_page_count={database.number('page_count')}")

    def make_room(self, store: Store) -> None:
        database_of(store).execute("PRAGMA max_page_count=1000000")


class SQLiteFiles(SQLitePlace):
    """A data directory."""

    is_exclusive = has_readers = True

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._directory = scratch / "data"
        self._num_kills = 0

    def open(self) -> Store:
        return SQLiteStore.open(self._directory, Clock())

    def kill(self, store: Store) -> None:
        """Take what the files are just now: a killed process leaves no more and no less."""
        self._num_kills += 1
        left = self._scratch / f"killed-{self._num_kills}"
        shutil.copytree(self._directory, left, ignore=shutil.ignore_patterns("*-shm"))
        self._directory = left
        store.close()

    def damage(self, store: Store) -> None:
        database_of(store).execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.close()
        path = self._directory / DATABASE_NAME
        data = bytearray(path.read_bytes())
        first = len(data) * 3 // 4 // PAGE_BYTES * PAGE_BYTES  # where the entries are
        data[first : first + PAGE_BYTES] = b"\xff" * PAGE_BYTES
        path.write_bytes(data)


class SQLiteMemory(SQLitePlace):
    """A database in memory, as in the simulation."""

    is_exclusive = has_readers = False

    def __init__(self, _scratch: Path) -> None:
        self._database = StoppingDatabase(None)

    def open(self) -> Store:
        return MemoryStore(self._database, Clock())

    def kill(self, store: Store) -> None:
        database_of(store).left = -1
        self._database.rollback()

    def damage(self, store: Store) -> None:
        pytest.skip("memory has no pages that could be damaged")


class InPostgres:
    """A database in a real PostgreSQL."""

    is_exclusive = has_readers = True

    def __init__(self, server: PostgresServer) -> None:
        self._database = FreshDatabase(server)

    def open(self) -> Store:
        lease = self._database.lease()
        if lease.acquire() is not None:
            lease.release()
            msg = "another node has the lease"
            raise StorageError(msg, StorageFault.LOCKED)
        return PostgresStore(StoppingPostgres(lease), Clock())

    def kill(self, store: Store) -> None:
        """Close its connections, and let its lease run out."""
        store.close()

    def stop_at(self, store: Store, write: int) -> None:
        assert isinstance(store.db, StoppingPostgres)
        store.db.left = write

    def fill(self, store: Store) -> None:
        self._database.fill_tables()

    def make_room(self, store: Store) -> None:
        self._database.empty_tables()

    def damage(self, store: Store) -> None:
        store.close()
        pytest.skip("PostgreSQL has its own backups for damaged pages")


PLACES = (SQLiteFiles, SQLiteMemory, InPostgres)


@pytest.fixture(params=PLACES, ids=lambda place: place.__name__)
def make_place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], Place]:
    """Make a new place of one kind each time."""
    monkeypatch.setattr("gradwatch_server.storage.sqlite.store.SQLiteDatabase", StoppingDatabase)
    make = request.param
    if make is InPostgres:
        server = request.getfixturevalue("postgres")
        return lambda: InPostgres(server)
    return lambda: make(tmp_path_factory.mktemp("place"))


@pytest.fixture
def place(make_place: Callable[[], Place]) -> Place:
    return make_place()


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    store = place.open()
    yield store
    store.close()


@pytest.fixture
def stopped() -> type[BaseException]:
    """Exception that `Place.stop_at` raises."""
    return Killed
