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

_REFUSED: Final = (
    "the ledger {} does not let us in: {}; give --ledger, or GRADWATCH_LEDGER, the user, password "
    "and database that it has"
)


@contextlib.contextmanager
def storage_errors(address: Address) -> Iterator[None]:
    """Raise each error of PostgreSQL inside as a `StorageError` in one line."""
    try:
        yield
    except psycopg.Error as error:
        fault = _fault_of(error.sqlstate or "")
        words = _WORDS[fault]
        if is_refusal(error):
            fault, words = StorageFault.UNUSABLE, _REFUSED
        raise StorageError(words.format(address.name, address.hide(str(error))), fault) from error


def is_refusal(error: psycopg.Error) -> bool:
    """Tell whether PostgreSQL does not take the user or the password, in whichever language.

    libpq gives no SQLSTATE where a connection cannot be made. But it knows whether it was asked for
    a password before: who is asked got an answer from a server that is well.
    """
    if error.sqlstate is not None:
        return error.sqlstate.startswith("28")
    pgconn = error.pgconn
    return pgconn is not None and (pgconn.needs_password or pgconn.used_password)


def _fault_of(sqlstate: str) -> StorageFault:
    by_class = _FAULTS.get(sqlstate[:2], StorageFault.FAILED)
    return _FAULTS.get(sqlstate, by_class)
