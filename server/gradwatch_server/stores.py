"""Choice of the store: the one place that names one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradwatch_server.clock import Clock
from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.encoding import EncodedEntry
from gradwatch_server.storage.inspection import Inspection
from gradwatch_server.storage.sqlite.deliveries import SQLiteDeliveryLog
from gradwatch_server.storage.sqlite.history import read_log
from gradwatch_server.storage.sqlite.inspection import inspect
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_server.storage.store import Store


def open_store(directory: Path, clock: Clock, *, allow_network_fs: bool, boot: str) -> Store:
    """Open or create the store of a data directory for writing.

    Args:
        directory: The data directory, made if missing.
        clock: Tells the time.
        allow_network_fs: Whether it may be on a network file system.
        boot: What tells this start of the aggregator from others: whoever may read the directory
            can tell by it whether an aggregator that answers somewhere is the one that has it.

    Raises:
        StorageError: If it cannot be used, or an aggregator has it.
    """
    return SQLiteStore.open(directory, clock, allow_network_fs=allow_network_fs, boot=boot)


def open_delivery_log(directory: Path) -> DeliveryLog:
    """Open or create what is kept of notifications in a data directory that is open.

    Raises:
        StorageError: If it cannot be used.
    """
    return SQLiteDeliveryLog(directory)


def read_stored_log(directory: Path, run: str) -> Iterator[EncodedEntry]:
    """Yield the entries of a run in a data directory, also beside the aggregator that serves it.

    Raises:
        StorageError: If there is none, or it cannot be read.
    """
    return read_log(directory, run)


def inspect_store(directory: Path) -> Inspection:
    """Look at a data directory from outside, also beside the aggregator that serves it.

    Raises:
        OSError: If it may not be looked at.
    """
    return inspect(directory)
