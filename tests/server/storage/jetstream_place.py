"""A place whose log is in NATS JetStream, and all else in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from nats.aio.client import Client

from gradwatch_server.clock import Clock
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.jetstream import JetStreamStream
from gradwatch_server.nats.stream import Stored, Stream
from gradwatch_server.storage.jetstream.log import JetStreamLog
from gradwatch_server.storage.jetstream.records import JetStreamRecords
from gradwatch_server.storage.sqlite.alert_events import SQLiteAlertEvents
from gradwatch_server.storage.sqlite.saved_state import SQLiteSavedState
from gradwatch_server.storage.sqlite.series import SQLiteSeries
from gradwatch_server.storage.store import Loss, StorageError, Store
from tests.server.storage.stopping import MemoryStore, StoppingDatabase

_NUMBERS: Final = itertools.count(1)


@dataclass
class StoppingStream:
    """A stream whose process can be stopped before or after each call that writes."""

    stream: Stream
    database: StoppingDatabase

    def append(self, *arguments: Any, **settings: Any) -> int:
        self.database.count(True)
        sequence = self.stream.append(*arguments, **settings)
        self.database.count(True)
        return sequence

    def take_over(self, subject: str, epoch: int, headers: Mapping[str, str]) -> int:
        return self.stream.take_over(subject, epoch, headers)

    def purge(self, subject: str, before: int) -> None:
        self.database.count(True)
        self.stream.purge(subject, before)
        self.database.count(True)

    def read(self, subject: str, after: int = 0, *, headers_only: bool = False) -> Iterator[Stored]:
        return self.stream.read(subject, after, headers_only=headers_only)

    def get(self, sequence: int) -> Stored | None:
        return self.stream.get(sequence)

    def used_bytes(self) -> int:
        return self.stream.used_bytes()


class ComposedStore:
    """The log of one store, and all else of another."""

    def __init__(self, memory: MemoryStore, log: JetStreamLog) -> None:
        self.memory = memory
        self._log = log
        self._records = JetStreamRecords(log.contents)

    @property
    def name(self) -> str:
        return "nats"

    @property
    def log(self) -> JetStreamLog:
        return self._log

    @property
    def alert_events(self) -> SQLiteAlertEvents:
        return self.memory.alert_events

    @property
    def state(self) -> SQLiteSavedState:
        return self.memory.state

    @property
    def series(self) -> SQLiteSeries:
        return self.memory.series

    @property
    def records(self) -> JetStreamRecords:
        return self._records

    def used_bytes(self) -> int:
        return self._log.used_bytes() + self.memory.used_bytes()

    def vacuum(self, num_bytes: int) -> bool:
        return self.memory.vacuum(num_bytes)

    def check(self) -> None:
        self.memory.check()

    def find_loss(self) -> Loss | None:
        return self.memory.find_loss()

    def reset(self, why: StorageError) -> None:
        raise why

    def close(self) -> None:
        self.memory.close()


class JetStreamMemory:
    """A stream of its own on a server that all tests share, and a database in memory."""

    is_exclusive = False  # a second writer takes over, and the first one is refused
    has_readers = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._name = f"CONTRACT_{next(_NUMBERS)}"
        self._database = StoppingDatabase(None)
        self._stream = JetStreamStream(connection, self._name)
        self._stream.ensure([f"{self._name}.>"], replicas=1, max_bytes=None)
        self._epoch = 0

    def open(self) -> Store:
        self._epoch += 1
        stream = StoppingStream(self._stream, self._database)
        log = JetStreamLog(stream, self._name, 0, self._epoch)
        return ComposedStore(MemoryStore(self._database, Clock()), log)

    def kill(self, store: Store) -> None:
        """Lose what was in memory; who opens it next has the next epoch."""
        self._database.left = -1
        self._database.rollback()

    def stop_at(self, store: Store, write: int) -> None:
        self._database.left = write

    def fill(self, store: Store) -> None:
        self._limit(self._stream.used_bytes())
        pages = self._database.number("page_count")
        self._database.execute(f"PRAGMA max_page_count={pages}")

    def make_room(self, store: Store) -> None:
        self._limit(-1)
        self._database.execute("PRAGMA max_page_count=1000000")

    def _limit(self, max_bytes: int) -> None:
        async def limit(client: Client) -> None:
            manager = client.jetstream()
            config = (await manager.stream_info(self._name)).config
            await manager.update_stream(replace(config, max_bytes=max_bytes))

        self._connection.call(limit, "the stream's limit")

    def damage(self, store: Store) -> None:
        pytest.skip("what one server's disk damages the others have")
