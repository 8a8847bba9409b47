"""The tables in a real PostgreSQL: made once and whole, and never by half."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from gradwatch_server.storage.postgres import schema
from gradwatch_server.storage.postgres.schema import migrate
from gradwatch_server.storage.rows import StorageError, StorageFault
from tests.support.postgres import PASSWORD, STRANGER, PostgresServer
from tests.support.postgres_database import FreshDatabase
from tests.support.waiting import PATIENCE_S, wait_until

TABLES = [
    *("alert_events", "blocks", "curves"),
    *("delivery_entries", "delivery_groups", "delivery_targets"),
    *("forgotten_runs", "log", "nodes"),
    *("saved_attempts", "saved_runs", "saved_state", "schema_version"),
]

ADD = "INSERT INTO gradwatch.alert_events VALUES (1, 'id', 'firing', 'gpt', '{}', 0, 0, 0)"


@pytest.fixture
def database(postgres: PostgresServer) -> FreshDatabase:
    return FreshDatabase(postgres)


def refusal(url: str) -> StorageError:
    with pytest.raises(StorageError) as refused:
        migrate(url)
    assert "\n" not in str(refused.value)
    return refused.value


@pytest.mark.slow
def test_an_empty_database_gets_the_tables(database: FreshDatabase) -> None:
    migrate(database.url)
    database.execute(ADD)
    migrate(database.url)

    assert database.tables() == TABLES
    assert database.execute("SELECT version_num FROM gradwatch.schema_version") == [("0001",)]
    assert database.execute("SELECT alert_id FROM gradwatch.alert_events") == [("id",)]


def test_processes_that_start_together_take_turns(database: FreshDatabase) -> None:
    together = threading.Barrier(3)

    def start(_: int) -> None:
        together.wait(PATIENCE_S)
        migrate(database.url)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(start, range(3), timeout=PATIENCE_S))

    assert database.tables() == TABLES


def test_tables_of_an_unknown_version_are_refused(database: FreshDatabase) -> None:
    """The error says what to do; not a row is changed."""
    migrate(database.url)
    database.execute("UPDATE gradwatch.schema_version SET version_num = '9999'")
    found = refusal(database.url)

    assert found.fault is StorageFault.UNUSABLE
    assert "has schema version 9999, this gradwatch knows up to 0001; use the" in str(found)
    assert database.execute("SELECT version_num FROM gradwatch.schema_version") == [("9999",)]


def test_a_full_disk_leaves_nothing(database: FreshDatabase) -> None:
    database.fill()
    found = refusal(database.url)

    assert found.fault is StorageFault.FULL
    assert "No space left on device" in str(found)
    assert database.tables() == []
    database.make_room()
    migrate(database.url)
    assert database.tables() == TABLES


def test_a_lost_connection_leaves_nothing(database: FreshDatabase) -> None:
    with psycopg.connect(database.url) as first, ThreadPoolExecutor(1) as threads:
        first.execute("SELECT pg_advisory_xact_lock(%s)", (schema._LOCK,))
        second = threads.submit(refusal, database.url)
        database.cut_off(wait_until(lambda: database.waiting("advisory"), "it waits"))
        found = second.result(PATIENCE_S)

    assert found.fault is StorageFault.FAILED
    assert "terminating connection" in str(found)
    assert database.tables() == []


def test_no_error_has_the_password(postgres: PostgresServer) -> None:
    found = refusal(postgres.url().replace("gradwatch:", f"{STRANGER}:"))

    assert found.fault is StorageFault.FAILED
    assert STRANGER in str(found)
    assert PASSWORD not in str(found)
