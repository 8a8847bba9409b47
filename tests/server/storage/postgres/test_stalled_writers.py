"""Who stands still in the middle of writing keeps nobody waiting for long."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from gradwatch_server.storage.postgres import alert_events, database, heartbeat
from gradwatch_server.storage.postgres.ledger import PostgresLedger
from gradwatch_server.storage.store import NewAlertEvent, StorageError, StorageFault
from tests.support import ledger_writer
from tests.support.ledger_database import CLUSTER_ID, PARTITIONS, LedgerDatabase
from tests.support.ledger_writer import BATCH, BATCHES
from tests.support.waiting import PATIENCE_S, wait_until

HOLDERS = """
    SELECT state FROM pg_stat_activity AS own JOIN pg_locks USING (pid)
    WHERE relation = 'gradwatch.{}'::regclass AND mode LIKE 'Row%' AND wait_event = 'ClientRead'
    AND own.datname = current_database()
"""
"""In which state those are that have rows of a table and wait for their client."""


@pytest.fixture
def ledger(
    ledger_database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PostgresLedger]:
    """Half a second is long for it."""
    monkeypatch.setattr(database, "STALLED_MS", 500)
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.1)
    with closing(ledger_database.open()) as own:
        yield own


@contextmanager
def writer(ledger_database: LedgerDatabase, how: str) -> Iterator[subprocess.Popen[str]]:
    """Start an owner of partition 0, which ends with the block."""
    place = ledger_database.url, CLUSTER_ID, str(PARTITIONS)
    command = [sys.executable, ledger_writer.__file__, *place, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def stop_in_the_middle(
    process: subprocess.Popen[str], ledger_database: LedgerDatabase, table: str, state: str
) -> None:
    """Stop it, again and again, until it does so with rows of a table and in a state."""

    def holds() -> bool:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)  # what was sent is still being done
        is_held = (state,) in ledger_database.execute(HOLDERS.format(table))
        if not is_held:
            process.send_signal(signal.SIGCONT)
        return is_held

    wait_until(holds, f"it is stopped {state} with rows of {table}")


def patiently(call: Callable[[], object]) -> None:
    """Repeat a call as owners do, until it is not refused because of a lock."""

    def succeeds() -> bool:
        try:
            call()
        except StorageError as error:
            if error.fault is not StorageFault.BUSY:
                raise
            return False
        return True

    wait_until(succeeds, "others to go on")


def event(alert_id: str) -> NewAlertEvent:
    return NewAlertEvent(alert_id, "firing", "gpt", "{}")


def test_a_partition_is_taken_from_an_owner_that_is_stopped_within_a_save(
    ledger: PostgresLedger, ledger_database: LedgerDatabase
) -> None:
    """PostgreSQL's own limit does not hold there: its server is in the middle of its work."""
    with writer(ledger_database, "state") as process:
        stop_in_the_middle(process, ledger_database, "partitions", "active")
        patiently(lambda: ledger.take(0, 2))


def test_alerts_of_others_do_not_wait_for_an_owner_that_is_stopped(
    ledger: PostgresLedger, ledger_database: LedgerDatabase
) -> None:
    """Nor does it lose or double any of its own when it goes on."""
    other = ledger.take(1, 1)
    with writer(ledger_database, "events") as process:
        stop_in_the_middle(process, ledger_database, "alert_cursor", "idle in transaction")
        patiently(lambda: other.alert_events.add([event("of another")]))
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE_S) == 0
    stored = ledger_database.execute("SELECT cursor, alert_id FROM gradwatch.alert_events")
    wanted = {f"{number}-{place}" for number in range(BATCHES) for place in range(BATCH)}
    assert sorted(cursor for cursor, _ in stored) == list(range(1, len(wanted) + 2))
    assert {alert_id for _, alert_id in stored} == wanted | {"of another"}


def test_only_who_keeps_others_waiting_is_ended(
    ledger: PostgresLedger, ledger_database: LedgerDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow link may take its time."""
    own = ledger.take(0, 1)
    ledger.take(1, 1)
    url = ledger_database.url
    with psycopg.connect(url) as slow, closing(psycopg.connect(url)) as stalled:
        slow.execute("SELECT FROM gradwatch.partitions WHERE partition = 1 FOR SHARE")
        stalled.execute("UPDATE gradwatch.alert_cursor SET newest = newest + 1")
        patiently(lambda: own.alert_events.add([event("x")]))
        slow.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            stalled.execute("SELECT 1")
    wait_until(lambda: "ended 1 of its connections" in caplog.text, "it is told")


def test_alerts_wait_for_a_server_that_stands_still_for_less_long_than_others(
    ledger: PostgresLedger, ledger_database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does whose disk does not answer while others have all in memory."""
    own = ledger.take(0, 1)
    monkeypatch.setattr(alert_events, "BRIEF_S", 0.3)
    monkeypatch.setattr(heartbeat, "STATEMENT_S", 2 * PATIENCE_S)
    slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM "
    slow += f"pg_sleep({PATIENCE_S}); RETURN NEW; END $$; CREATE TRIGGER slow BEFORE INSERT ON "
    ledger_database.execute(f"{slow} gradwatch.alert_events FOR EACH ROW EXECUTE FUNCTION slow()")
    try:
        with pytest.raises(StorageError):
            own.alert_events.add([event("x")])
    finally:
        ledger_database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        )
        ledger_database.execute("DROP FUNCTION slow CASCADE")
