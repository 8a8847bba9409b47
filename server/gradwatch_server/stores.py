"""Which store it is: the one place that names one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gradwatch_server.clock import Clock
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.encoding import EncodedEntry
from gradwatch_server.storage.inspection import Inspection
from gradwatch_server.storage.ledger import Ledger
from gradwatch_server.storage.sqlite.deliveries import SQLiteDeliveryLog
from gradwatch_server.storage.sqlite.history import read_log
from gradwatch_server.storage.sqlite.inspection import inspect
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_server.storage.store import Store

if TYPE_CHECKING:
    from gradwatch_server.nats.connection import Connection
    from gradwatch_server.storage.replicated import ReplicatedStorage


def open_store(
    directory: Path,
    clock: Clock | None = None,
    *,
    allow_network_fs: bool = False,
    boot: str = "",
) -> Store:
    """Open or create the store of a data directory for writing.

    Args:
        directory: The data directory, made if missing.
        clock: Tells the time; None for one of its own.
        allow_network_fs: Whether it may be on a network file system.
        boot: What tells this start of the aggregator from others: whoever may read the directory
            can tell by it whether an aggregator that answers somewhere is the one that has it.

    Raises:
        StorageError: If it cannot be used, or an aggregator has it.
    """
    return SQLiteStore.open(
        directory, clock or Clock(), allow_network_fs=allow_network_fs, boot=boot
    )


def open_delivery_log(directory: Path) -> DeliveryLog:
    """Open or create what is kept of notifications in a data directory that is open.

    Raises:
        StorageError: If it cannot be used.
    """
    return SQLiteDeliveryLog(directory)


def open_ledger(url: str, cluster_id: str, partitions: int, clock: Clock | None = None) -> Ledger:
    """Open the ledger of a cluster; a new database becomes one.

    Args:
        url: `postgresql://user:password@host:port/database`.
        cluster_id: The cluster that it has to be of.
        partitions: Partitions of that cluster.
        clock: Tells the time; None for one of its own.

    Raises:
        StorageError: If nobody answers, or it cannot be used or is of another cluster.
        GradwatchError: If the libraries for it are missing.
    """
    try:
        from gradwatch_server.storage.postgres.ledger import PostgresLedger  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("alembic", "psycopg", "sqlalchemy"):
            raise
        msg = "a ledger needs PostgreSQL's libraries; run: pip install 'gradwatch[cluster]'"
        raise GradwatchError(msg) from error
    return PostgresLedger(url, cluster_id, partitions, clock or Clock())


def open_replicated(
    connection: Connection,
    url: str,
    cluster_id: str,
    partitions: int,
    *,
    namespace: str,
    replicas: int,
    owner: str,
    log_max_bytes: int | None = None,
) -> ReplicatedStorage:
    """Open or create what a cluster keeps: a log in JetStream, a ledger in PostgreSQL.

    Args:
        connection: To the NATS servers.
        url: Of the ledger.
        cluster_id: The cluster that both have to be of.
        partitions: Partitions of that cluster.
        namespace: What names of streams and subjects begin with.
        replicas: NATS servers that keep each entry.
        owner: Who opens partitions: nobody else is called so.
        log_max_bytes: What the log may take on each of them; None for no limit.

    Raises:
        GradwatchError: If either cannot be used.
    """
    from gradwatch_server.nats.jetstream import JetStreamStream  # noqa: PLC0415 - an extra's
    from gradwatch_server.storage.replicated import ReplicatedStorage  # noqa: PLC0415 - likewise

    stream = JetStreamStream(connection, log_stream(namespace))
    subjects = [f"{namespace}.{kind}.*" for kind in ("log", "heads")]
    stream.ensure(subjects, replicas=replicas, max_bytes=log_max_bytes)
    ledger = open_ledger(url, cluster_id, partitions)
    return ReplicatedStorage(stream, ledger, namespace, owner, stream.check)


def log_stream(namespace: str) -> str:
    """Return the name of the stream that has the log of a cluster."""
    return f"{namespace.upper()}_LOG"


def read_stored_log(directory: Path) -> Iterator[EncodedEntry]:
    """Yield the entries of the log in a data directory, also beside the aggregator that serves it.

    Raises:
        StorageError: If there is none, or it cannot be read.
    """
    return read_log(directory)


def inspect_store(directory: Path) -> Inspection:
    """Look at a data directory from outside, also beside the aggregator that serves it.

    Raises:
        OSError: If it may not be looked at.
    """
    return inspect(directory)
