"""What an error of PostgreSQL means to the users of a ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import psycopg

from gradwatch_server.storage.postgres.address import Address
from gradwatch_server.storage.store import StorageError, StorageFault

_FAULTS: Final = {
    "53100": StorageFault.FULL,  # disk_full
    "53300": StorageFault.BUSY,  # too_many_connections
    "55P03": StorageFault.BUSY,  # lock_not_available
    "40": StorageFault.BUSY,  # serialization_failure, deadlock_detected
    "28": StorageFault.UNUSABLE,  # invalid_password and the like
    "3D": StorageFault.UNUSABLE,  # no such database
    "3F": StorageFault.UNUSABLE,  # no such schema
    "42": StorageFault.UNUSABLE,  # not permitted, or the tables are others
}
"""By SQLSTATE, or by its class; all others may pass, a lost connection for one."""

_WORDS: Final = {
    StorageFault.FULL: "the disk of the ledger {} is full: {}",
    StorageFault.BUSY: "the ledger {} is busy: {}",
    StorageFault.UNUSABLE: "the ledger {} cannot be used: {}",
    StorageFault.FAILED: "the ledger {} failed: {}",
}


@contextlib.contextmanager
def storage_errors(address: Address) -> Iterator[None]:
    """Raise each error of PostgreSQL inside as a `StorageError` in one line."""
    try:
        yield
    except psycopg.Error as error:
        fault = _fault_of(error.sqlstate or "")
        text = _WORDS[fault].format(address.name, address.hide(str(error)))
        raise StorageError(text, fault) from error


def _fault_of(sqlstate: str) -> StorageFault:
    by_class = _FAULTS.get(sqlstate[:2], StorageFault.FAILED)
    return _FAULTS.get(sqlstate, by_class)
