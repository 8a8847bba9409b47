"""A PostgreSQL that stands still, or cannot be reached: who waits for it is told in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import psutil
import pytest

from gradwatch_server.storage.postgres import heartbeat
from gradwatch_server.storage.postgres.database import READERS
from gradwatch_server.storage.postgres.ledger import PostgresLedger
from gradwatch_server.storage.store import StorageError, StorageFault
from gradwatch_server.stores import open_ledger
from tests.support.ledger_database import CLUSTER_ID, PARTITIONS, LedgerDatabase
from tests.support.relay import Relay
from tests.support.waiting import PATIENCE_S, wait_until

SERVERS = """
    SELECT pid FROM pg_stat_activity WHERE datname = current_database()
    AND application_name = 'gradwatch' AND pid <> pg_backend_pid()
"""


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known to hang within a second, of which libpq needs two to give up a connection."""
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.1)
    monkeypatch.setattr(heartbeat, "HANGS_S", 0.5)


@pytest.fixture
def relay(ledger_database: LedgerDatabase) -> Iterator[Relay]:
    own = Relay(f"tcp://{urlsplit(ledger_database.url).netloc.rpartition('@')[2]}")
    yield own
    own.resume()
    own.close()


def behind(relay: Relay, url: str) -> PostgresLedger:
    """Open a ledger that is reached through a relay."""
    parts = urlsplit(url)
    place = relay.endpoint.removeprefix("tcp://")
    through = parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{place}")
    found = open_ledger(urlunsplit(through), CLUSTER_ID, PARTITIONS)
    assert isinstance(found, PostgresLedger)
    return found


def fault_of(ledger: PostgresLedger) -> StorageFault | None:
    try:
        ledger.alert_events.newest()
    except StorageError as error:
        return error.fault
    return None


def test_all_who_wait_are_told_and_nobody_waits_after_that(
    ledger_database: LedgerDatabase, relay: Relay
) -> None:
    ledger = behind(relay, ledger_database.url)
    own = ledger.take(1, 1)
    relay.hang()
    with ThreadPoolExecutor(2 * READERS) as pool:
        asked = [pool.submit(fault_of, ledger) for _ in range(2 * READERS)]
        writing = pool.submit(own.runs.publish, {"gpt": "{}"}, 7)
        assert {each.result(PATIENCE_S) for each in asked} <= {
            StorageFault.FAILED,
            StorageFault.BUSY,
        }
        assert isinstance(writing.exception(PATIENCE_S), StorageError)
        began_s = time.monotonic()
        assert fault_of(ledger) is StorageFault.FAILED
        assert time.monotonic() - began_s < heartbeat.HANGS_S
        relay.resume()
        wait_until(lambda: fault_of(ledger) is None, "it answers again")
        asked = [pool.submit(fault_of, ledger) for _ in range(READERS)]
        assert {each.result(PATIENCE_S) for each in asked} == {None}
        own.runs.publish({"gpt": "{}"}, 8)
    ledger.close()


def test_servers_that_stand_still_are_left_behind(ledger_database: LedgerDatabase) -> None:
    """Those of the connections there are: new ones are let in."""

    def pids() -> set[int]:
        return {pid for (pid,) in ledger_database.execute(SERVERS)}

    before = pids()
    ledger = open_ledger(ledger_database.url, CLUSTER_ID, PARTITIONS)
    assert isinstance(ledger, PostgresLedger)
    assert fault_of(ledger) is None
    # The one that was asked, and the one that asks whether it answers.
    wait_until(lambda: len(pids() - before) >= 2, "both connections")
    servers = [psutil.Process(pid) for pid in pids() - before]
    for server in servers:
        server.suspend()
    try:
        wait_until(lambda: fault_of(ledger) is None, "another connection")
    finally:
        for server in servers:
            with suppress(psutil.NoSuchProcess):
                server.resume()
    ledger.close()


def test_one_statement_that_takes_too_long_is_cut_off(
    ledger_database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although others are answered."""
    monkeypatch.setattr(heartbeat, "STATEMENT_S", 0.3)
    ledger = open_ledger(ledger_database.url, CLUSTER_ID, PARTITIONS)
    assert isinstance(ledger, PostgresLedger)
    with pytest.raises(StorageError):
        ledger._db.row(f"SELECT pg_sleep({PATIENCE_S})")
    assert fault_of(ledger) is None
    ledger.close()
