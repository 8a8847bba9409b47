"""A database in a real PostgreSQL whose disk can fill and whose clients can be cut off."""

from __future__ import annotations

import os
from typing import Any, Final

from gradwatch_server.clock import Clock
from gradwatch_server.storage.postgres.database import PostgresStore
from gradwatch_server.storage.postgres.lease import LEASE_S, Lease
from gradwatch_server.storage.postgres.schema import migrate
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

# The words of PostgreSQL where the file system has no space.
_FILL: Final = """
    CREATE FUNCTION full_disk() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE 'could not extend file "base/5/1": No space left on device' USING ERRCODE = '53100';
    END $$;
    CREATE EVENT TRIGGER full_disk ON ddl_command_end
        WHEN TAG IN ('CREATE TABLE', 'CREATE INDEX') EXECUTE FUNCTION full_disk()
"""

_FILL_TABLES: Final = """
    CREATE FUNCTION gradwatch.full_table() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE 'could not extend file "base/5/2": No space left on device' USING ERRCODE = '53100';
    END $$;
    DO $$ DECLARE name text; BEGIN
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'gradwatch' LOOP
            EXECUTE format('CREATE TRIGGER full_table BEFORE INSERT OR UPDATE ON gradwatch.%I'
                ' FOR EACH STATEMENT EXECUTE FUNCTION gradwatch.full_table()', name);
        END LOOP;
    END $$
"""

_WAITING: Final = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = %s"
)


class FreshDatabase:
    """A new database.

    Args:
        server: The PostgreSQL that gets it.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.url = server.make_database()

    def lease(self, lease_s: float = LEASE_S) -> Lease:
        """Return the lease that this process may take."""
        migrate(self.url)
        return Lease(self.url, os.urandom(8).hex(), lease_s=lease_s)

    def open(self) -> PostgresStore:
        """Open the store as a new process does, once no other one has it."""
        lease = self.lease()
        wait_until(lambda: lease.acquire() is None, "the lease")
        return PostgresStore.open(lease, Clock())

    def execute(self, sql: str, *values: Any) -> list[Any]:
        """Run statements in it as its superuser; return the rows of the last one."""
        return self._server.execute(sql, values, self.url)

    def tables(self) -> list[str]:
        """Return the names of our tables."""
        found = "SELECT tablename FROM pg_tables WHERE schemaname = 'gradwatch' ORDER BY 1"
        return [name for (name,) in self.execute(found)]

    def fill(self) -> None:
        """Refuse new tables and indices as a full disk does."""
        self.execute(_FILL)

    def make_room(self) -> None:
        """Undo `fill`."""
        self.execute("DROP EVENT TRIGGER full_disk; DROP FUNCTION full_disk")

    def fill_tables(self) -> None:
        """Refuse new rows as a full disk does."""
        self.execute(_FILL_TABLES)

    def empty_tables(self) -> None:
        """Undo `fill_tables`."""
        self.execute("DROP FUNCTION gradwatch.full_table CASCADE")

    def waiting(self, event: str) -> list[int]:
        """Return the processes that wait for an event, for example `advisory`."""
        return [pid for (pid,) in self.execute(_WAITING, event)]

    def cut_off(self, pids: list[int]) -> None:
        self.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", pids)
