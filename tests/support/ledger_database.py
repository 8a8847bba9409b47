"""A ledger in a real PostgreSQL whose clients can be killed and whose disk can fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.storage.postgres.connections import BinaryCursor, Connections
from gradwatch_server.storage.postgres.ledger import PostgresLedger
from tests.support.waiting import wait_until

CLUSTER_ID: Final = "5f0c"
PARTITIONS: Final = 8

_CLEAR: Final = """
    DO $$ DECLARE name text; BEGIN
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'gradwatch'
            AND tablename NOT IN ('alert_cursor', 'cluster', 'schema_version')
        LOOP EXECUTE format('DELETE FROM gradwatch.%I', name); END LOOP;
        UPDATE gradwatch.alert_cursor SET newest = 0;
    END $$
"""

# What PostgreSQL says when the file system has no space, to whoever writes.
_FILL: Final = """
    CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE 'could not extend file "base/5/1": No space left on device' USING ERRCODE = '53100';
    END $$;
    DO $$ DECLARE name text; BEGIN
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'gradwatch'
        LOOP EXECUTE format('CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON gradwatch.%I'
            ' FOR EACH ROW EXECUTE FUNCTION full_disk()', name); END LOOP;
    END $$
"""

_OTHERS: Final = (
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
)

_MAKE_ROOM: Final = "DROP FUNCTION IF EXISTS full_disk CASCADE"


class LedgerDatabase:
    """A database that is the ledger of a cluster.

    Args:
        url: Its URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.count: Callable[[bool], None] | None = None
        """Called where a process may be killed, with whether something is written there."""
        self._own = Connections(lambda: psycopg.connect(url, autocommit=True), 1)
        self._patch = pytest.MonkeyPatch()
        cursors = "gradwatch_server.storage.postgres.connections.BinaryCursor"
        self._patch.setattr(cursors, self._cursors())
        self.ledger = self.open()
        """One that stays open."""

    def close(self) -> None:
        """Close it."""
        self.ledger.close()
        self._own.close()
        self._patch.undo()

    def open(self, partitions: int = PARTITIONS) -> PostgresLedger:
        """Open it as a new process does."""
        return PostgresLedger(self.url, CLUSTER_ID, partitions, Clock())

    def execute(self, sql: str, *values: Any) -> list[Any]:
        """Run a statement in it."""
        with self._own.one() as connection:
            cursor = connection.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def clear(self) -> None:
        """Make it as it was when it was new."""
        self.count = None
        self.execute(f"{_MAKE_ROOM}; {_CLEAR}")

    def fill(self) -> None:
        """Refuse what is written as a full disk does."""
        self.execute(_FILL)

    def make_room(self) -> None:
        """Take it again."""
        self.execute(_MAKE_ROOM)

    def end_connections(self) -> None:
        """End those that processes have which are killed."""
        self.count = None
        pids = [pid for (pid,) in self.execute(f"SELECT pid {_OTHERS}")]
        left = "FROM pg_stat_activity WHERE pid = ANY(%s)"
        self.execute(f"SELECT pg_terminate_backend(pid) {left}", pids)
        # Those only: what asks each second whether the database answers connects anew at once.
        wait_until(lambda: not self.execute(f"SELECT pid {left}", pids), "connections are gone")

    def _cursors(self) -> type[BinaryCursor]:
        """Return what connections run their statements with, so that `count` sees them."""
        database = self

        class CountedCursor(BinaryCursor):
            def execute(self, query: Any, *arguments: Any, **settings: Any) -> Any:
                starts = ("BEGIN", "COMMIT", "INSERT", "DELETE", "UPDATE", "WITH taken")
                self._count(query.strip().startswith(starts))
                found = super().execute(query, *arguments, **settings)
                self._count(query == "COMMIT")  # after all others the next one comes anyway
                return found

            def executemany(self, *arguments: Any, **settings: Any) -> None:
                self._count(True)
                super().executemany(*arguments, **settings)

            def _count(self, is_writing: bool) -> None:
                if database.count is None:
                    return
                try:
                    database.count(is_writing)
                except BaseException:
                    end = "SELECT pg_terminate_backend(%s)"
                    database.execute(end, self.connection.info.backend_pid)
                    raise

        return CountedCursor
