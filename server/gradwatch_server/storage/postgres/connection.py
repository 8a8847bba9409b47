"""Connections to PostgreSQL, and its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import psycopg

from gradwatch_server.storage.postgres.schema import SCHEMA
from gradwatch_server.storage.rows import StorageError, StorageFault

_NET: Final[dict[str, Any]] = {
    "connect_timeout": 3,
    "tcp_user_timeout": 5_000,  # ms
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
}
"""Options of each connection: a database that does not answer is noticed within seconds."""

_SETTINGS: Final = """
    SET search_path TO {schema};
    SET statement_timeout = '60s';
    SET idle_in_transaction_session_timeout = '30s'
"""

_FAULTS: Final = {
    "53100": StorageFault.FULL,  # disk_full
    "XX001": StorageFault.DAMAGED,  # data_corrupted
    "XX002": StorageFault.DAMAGED,  # index_corrupted
    "40001": StorageFault.BUSY,  # serialization_failure
    "40P01": StorageFault.BUSY,  # deadlock_detected
    "55P03": StorageFault.BUSY,  # lock_not_available
}
"""By SQLSTATE."""


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Raise each error of PostgreSQL inside as a `StorageError` with the same words."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""  # none where there is no connection
        is_cut = state[:2] in ("", "08", "57")
        fault = _FAULTS.get(state, StorageFault.BUSY if is_cut else StorageFault.FAILED)
        text = " ".join(str(error).split()) or "the connection is lost"
        if fault is StorageFault.FULL:
            text = f"the disk of PostgreSQL is full: {text}"
        raise StorageError(text, fault) from error


def connect(url: str, name: str) -> psycopg.Connection[Any]:
    """Open a connection to the tables of gradwatch.

    Args:
        url: `postgresql://user:password@host:port/database`.
    """
    with storage_errors():
        connection = psycopg.connect(url, autocommit=True, application_name=name, **_NET)
        connection.execute(_SETTINGS.format(schema=SCHEMA).encode())
    return connection
