"""A place as a cluster has it: the log in NATS JetStream, and all else in PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_server.nats.connection import Connection
from gradwatch_server.storage.ledger import PartitionLedger
from gradwatch_server.storage.store import Store
from tests.server.storage.jetstream_place import ComposedStore, JetStreamMemory
from tests.support.ledger_database import PARTITIONS, LedgerDatabase


class LedgerStore(ComposedStore):
    """The log of a store, and what a partition has in a ledger."""

    def __init__(self, store: ComposedStore, own: PartitionLedger) -> None:
        super().__init__(store.memory, store.log)
        self._own = own

    @property
    def alert_events(self) -> Any:
        return self._own.alert_events

    @property
    def state(self) -> Any:
        return self._own.state

    @property
    def series(self) -> Any:
        return self._own.series

    def used_bytes(self) -> int:
        return self.log.used_bytes() + self._own.used_bytes()


class JetStreamAndLedger(JetStreamMemory):
    """A stream of its own, and a partition of a ledger that all tests share."""

    has_readers = True

    def __init__(self, connection: Connection, database: LedgerDatabase) -> None:
        super().__init__(connection)
        self._ledger_database = database
        database.clear()

    def open(self) -> Store:
        store = super().open()
        assert isinstance(store, ComposedStore)
        own = self._ledger_database.ledger.take(PARTITIONS - 1, self._epoch)
        return LedgerStore(store, own)

    def stop_at(self, store: Store, write: int) -> None:
        super().stop_at(store, write)
        self._ledger_database.count = self._database.count

    def kill(self, store: Store) -> None:
        super().kill(store)
        self._ledger_database.end_connections()

    def fill(self, store: Store) -> None:
        super().fill(store)
        self._ledger_database.fill()

    def make_room(self, store: Store) -> None:
        super().make_room(store)
        self._ledger_database.make_room()

    def damage(self, store: Store) -> None:
        pytest.skip("both find damage themselves: another server or a backup has what is damaged")
