"""The SQLite file of a data directory, read beside the connection that writes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gradwatch_server.storage.sqlite.checksums import text_of
from gradwatch_server.storage.sqlite.database import BUSY_S, Database, uri_of
from gradwatch_server.storage.sqlite.faults import storage_errors
from gradwatch_server.storage.sqlite.presence import Presence
from gradwatch_server.storage.sqlite.schema import SCHEMA_VERSION
from gradwatch_server.storage.store import StorageError, StorageFault


class ReadOnlyDatabase(Database):
    """A connection that cannot write, beside the one that does or without it."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            StorageError: If there is none, or it is not of the version that this gradwatch writes.
        """
        self._path = path
        self._connection = None
        self._presence = Presence(())
        self.loss = None
        if not path.is_file():
            msg = f"there is no {path}; give the aggregator's data directory with --data"
            raise StorageError(msg, StorageFault.UNUSABLE)
        try:
            with storage_errors():
                self._connection = sqlite3.connect(uri_of(path), uri=True, timeout=BUSY_S)
                self._connection.text_factory = text_of
            self.execute("PRAGMA query_only=1")
            version = self.number("user_version")
        except StorageError as error:
            self.close()
            msg = f"cannot read {path}: {error}"
            raise StorageError(msg, error.fault) from error
        if version != SCHEMA_VERSION:
            self.close()
            msg = (
                f"{path} has schema version {version}, this gradwatch reads {SCHEMA_VERSION}; "
                "use the gradwatch that serves it"
            )
            raise StorageError(msg, StorageFault.UNUSABLE)
