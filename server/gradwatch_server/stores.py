"""Choice of the store: the one place that names one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gradwatch_server.clock import Clock
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.encoding import EncodedEntry
from gradwatch_server.storage.inspection import StoreInspection
from gradwatch_server.storage.sqlite.deliveries import open_deliveries
from gradwatch_server.storage.sqlite.history import read_log
from gradwatch_server.storage.sqlite.inspection import inspect
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_server.storage.store import Store

if TYPE_CHECKING:
    from gradwatch_server.storage.postgres.lease import Lease, Node

    __all__ = ["Lease", "Node"]


def open_store(directory: Path, clock: Clock, *, allow_network_fs: bool, boot: str) -> Store:
    """Open or create the store of a data directory for writing.

    Args:
        boot: What tells this start of the aggregator from others: whoever may read the directory
            can tell by it whether an aggregator that answers somewhere is the one that has it.

    Raises:
        StorageError: If it cannot be used, or an aggregator has it.
    """
    return SQLiteStore.open(directory, clock, allow_network_fs=allow_network_fs, boot=boot)


def make_lease(url: str, node: str, http: str) -> Lease:
    """Make the tables of a PostgreSQL database where they are missing; return its lease.

    Args:
        http: Where people reach this node, empty if nobody knows.

    Raises:
        GradwatchError: If PostgreSQL refuses, or its driver is not installed.
    """
    lease = _lease(url, node, http)
    from gradwatch_server.storage.postgres.schema import migrate  # noqa: PLC0415

    migrate(url)
    return lease


def find_nodes(url: str) -> list[Node]:
    """Return the nodes of a PostgreSQL database; it is only read.

    Raises:
        GradwatchError: If PostgreSQL refuses, or its driver is not installed.
    """
    lease = _lease(url)
    try:
        return lease.nodes()
    finally:
        lease.release()


def _lease(url: str, node: str = "", http: str = "") -> Lease:
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of itself when imported
    try:
        from gradwatch_server.storage.postgres.lease import Lease  # noqa: PLC0415 - an extra
    except ImportError as error:
        msg = f"a store in PostgreSQL needs {error.name}; run: pip install 'gradwatch[postgres]'"
        raise GradwatchError(msg) from error
    return Lease(url, node, http)


def open_leased_store(lease: Lease, clock: Clock) -> Store:
    """Open the store of a PostgreSQL database of which this node has the lease.

    Raises:
        StorageError: If PostgreSQL cannot be reached, or refuses.
    """
    from gradwatch_server.storage.postgres.database import PostgresStore  # noqa: PLC0415

    return PostgresStore.open(lease, clock)


def open_delivery_log(directory: Path, lease: Lease | None) -> DeliveryLog:
    """Open or create what is kept of notifications, in a data directory or beside a lease.

    Raises:
        StorageError: If it cannot be used.
    """
    if lease is None:
        return open_deliveries(directory)
    from gradwatch_server.storage.postgres.database import PostgresDatabase  # noqa: PLC0415

    return DeliveryLog(PostgresDatabase(lease))


def read_stored_log(directory: Path, run: str) -> Iterator[EncodedEntry]:
    """Yield the entries of a run in a data directory, also beside the aggregator that serves it.

    Raises:
        StorageError: If there is none, or it cannot be read.
    """
    return read_log(directory, run)


def inspect_store(directory: Path) -> StoreInspection:
    """Look at a data directory from outside, also beside the aggregator that serves it.

    Raises:
        OSError: If it may not be looked at.
    """
    return inspect(directory)
