"""The lease over a real PostgreSQL: one node writes, whatever the others believe."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from gradwatch_server.storage.postgres.database import PostgresDatabase
from gradwatch_server.storage.postgres.lease import Lease, Node
from gradwatch_server.storage.rows import StorageError, StorageFault
from tests.support.postgres import PostgresServer
from tests.support.postgres_database import FreshDatabase
from tests.support.waiting import wait_until

SHORT_S = 0.4

WRITE = "INSERT INTO saved_state VALUES (?, '')"


@pytest.fixture
def database(postgres: PostgresServer) -> FreshDatabase:
    return FreshDatabase(postgres)


def written(database: FreshDatabase) -> list[str]:
    return [part for (part,) in database.execute("SELECT part FROM gradwatch.saved_state")]


def stop_renewals(lease: Lease) -> None:
    """Let a lease run out, as that of a process does that stands still."""
    lease._ended.set()
    lease._keeper.join()


def test_a_second_node_waits_while_the_first_one_renews(database: FreshDatabase) -> None:
    first, second = (database.lease(SHORT_S) for _ in range(2))
    assert first.acquire() is None
    db = PostgresDatabase(first)
    with db.transaction():  # which keeps no renewal waiting
        db.execute(WRITE, ("long",))
        until_s = time.monotonic() + 3 * SHORT_S
        while time.monotonic() < until_s:
            assert second.acquire() == Node(first.node, "")
    assert written(database) == ["long"]
    found = {node.id: node.has_lease for node in second.nodes()}
    assert found == {first.node: True, second.node: False}
    db.close()

    first.release()
    assert second.acquire() is None
    second.release()


def test_a_node_that_was_displaced_writes_nothing(database: FreshDatabase) -> None:
    first, second = (database.lease(SHORT_S) for _ in range(2))
    assert first.acquire() is None
    db = PostgresDatabase(first)
    stop_renewals(first)
    wait_until(lambda: second.acquire() is None, "the lease has run out")

    with pytest.raises(StorageError) as refused, db.transaction():
        db.execute(WRITE, ("late",))
    assert refused.value.fault in (StorageFault.GONE, StorageFault.BUSY)  # its connection is ended
    again = pytest.raises(StorageError, match="another node has taken over")
    with again as gone, db.transaction():
        db.execute(WRITE, ("later",))
    assert gone.value.fault is StorageFault.GONE
    assert written(database) == []
    assert first.is_lost
    db.close()
    first.release()
    second.release()


def test_a_node_that_stops_inside_a_transaction_holds_nobody(database: FreshDatabase) -> None:
    first, second = (database.lease(SHORT_S) for _ in range(2))
    assert first.acquire() is None
    db = PostgresDatabase(first)
    transaction = contextlib.ExitStack()
    transaction.enter_context(db.transaction())
    db.execute(WRITE, ("by half",))
    stop_renewals(first)
    began_s = time.monotonic()
    wait_until(lambda: second.acquire() is None, "the other one takes over")
    assert time.monotonic() - began_s < 10 * SHORT_S

    with pytest.raises(StorageError):
        transaction.close()
    assert written(database) == []
    db.close()
    first.release()
    second.release()


def test_of_nodes_that_ask_at_once_one_gets_it(database: FreshDatabase) -> None:
    for _ in range(10):
        leases = [database.lease() for _ in range(4)]
        with ThreadPoolExecutor(len(leases)) as threads:
            holders = list(threads.map(Lease.acquire, leases))
        assert holders.count(None) == 1
        for lease in leases:
            lease.release()


def test_a_node_that_cannot_reach_the_database_is_told_when_it_can_again(
    database: FreshDatabase,
) -> None:
    first = database.lease(SHORT_S)
    assert first.acquire() is None
    name = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'gradwatch %'"
    database.cut_off([pid for (pid,) in database.execute(name)])
    database.execute("UPDATE gradwatch.nodes SET holds = NULL, epoch = epoch + 1")

    wait_until(lambda: first.is_lost, "the next renewal says so")
    first.release()
    assert database.execute("SELECT * FROM gradwatch.nodes") == []


def test_a_look_makes_no_tables(database: FreshDatabase) -> None:
    lease = Lease(database.url, "")
    assert lease.nodes() == []
    assert database.tables() == []
    lease.release()


def test_a_wrong_password_is_one_line(database: FreshDatabase) -> None:
    lease = Lease(database.url.replace("postgresql://", "postgresql://nobody-at-all:x@", 1), "")
    with pytest.raises((StorageError, psycopg.Error)) as refused:
        lease.acquire()
    assert "\n" not in str(refused.value)


def test_a_clock_that_differs_is_told(
    database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = time.time
    # Half a second off the round: what lies between the two looks is part of the difference.
    monkeypatch.setattr(
        "gradwatch_server.storage.postgres.lease.time.time", lambda: clock() - 60.45
    )
    lease = database.lease()
    assert lease.acquire() is None
    assert "the clock of this node is 60 s behind that of postgresql://127.0.0.1" in caplog.text
    lease.release()
