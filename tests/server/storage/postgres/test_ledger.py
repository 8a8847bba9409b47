"""The ledger in PostgreSQL beyond the contract of stores: who may write, and what it outlives."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.storage.deliveries import Progress, TargetChange
from gradwatch_server.storage.ledger import PartitionLedger
from gradwatch_server.storage.postgres import connections, database
from gradwatch_server.storage.postgres.address import Address
from gradwatch_server.storage.postgres.ledger import PostgresLedger
from gradwatch_server.storage.series_store import ChunkFacts, SavedSeriesChunk
from gradwatch_server.storage.store import (
    NewAlertEvent,
    RunSave,
    SavedChunk,
    StorageError,
    StorageFault,
)
from gradwatch_server.stores import open_ledger
from tests.support.ledger_database import CLUSTER_ID, PARTITIONS, LedgerDatabase
from tests.support.postgres import PASSWORD, STRANGER, PostgresServer
from tests.support.waiting import PATIENCE_S, wait_until

FAR_FUTURE_NS = 1 << 62
ODD = "a\0b\u24000\u2400\n'\"\\é"
"""A name that a run may have: PostgreSQL has no text with NUL."""


@pytest.fixture
def ledger(ledger_database: LedgerDatabase) -> PostgresLedger:
    return ledger_database.ledger


def event(alert_id: str, run: str = "gpt", change: str = "firing") -> NewAlertEvent:
    return NewAlertEvent(alert_id, change, run, f'{{"id": "{alert_id}"}}')


def chunk(number: int, level: int = 0, upto: int = -1) -> SavedSeriesChunk:
    facts = ChunkFacts(level, number, 0, number * 16, number * 16 + 15, 16, upto=upto)
    return SavedSeriesChunk(facts, b"head", {"l2": b"body" * 3})


def saved(run: str) -> RunSave:
    return RunSave(
        run=run, body=b"run", attempts={1: b"attempt"}, chunks=[SavedChunk(1, 0, b"s", b"c")]
    )


def fill(own: PartitionLedger, run: str = "gpt") -> None:
    """Write something of everything."""
    own.alert_events.add([event(f"{own.partition}-{number}", run) for number in range(3)])
    own.state.save({"position": b"1"}, [saved(run)])
    own.series.save(run, 1, [chunk(0), chunk(1), chunk(0, level=1, upto=0)], b"layers")
    own.runs.publish({run: "{}"}, 7)


def contents(ledger: PostgresLedger, own: PartitionLedger, run: str = "gpt") -> Any:
    """Return what was written so."""
    state, series = own.state, own.series
    return (
        ledger.alert_events.after(0),
        own.alert_events.changes(run, 0, 9),
        (state.part("position"), state.runs(), state.run(run), state.columns(run, 1, 0)),
        (series.layers(run, 1), series.sizes(), series.after(run, 1, 0, -1, 9)),
        series.tables(run, 1, 0, 0),
        ledger.runs.after(),
    )


# Owners of the past.

WRITES: list[Callable[[PartitionLedger], object]] = [
    lambda own: own.alert_events.add([event("new")]),
    lambda own: own.alert_events.add([event("1-0")]),  # stored already
    lambda own: own.alert_events.trim(FAR_FUTURE_NS, 9),
    lambda own: own.alert_events.trim_run("gpt", 1, 9),
    lambda own: own.alert_events.remove_run("gpt", 99, 9),
    lambda own: own.state.save({"position": b"2"}, []),
    lambda own: own.state.save({}, [RunSave(run="gpt")]),
    lambda own: own.series.save("gpt", 1, [chunk(1), chunk(2)]),
    lambda own: own.series.save("gpt", 2, [], b"layers"),
    lambda own: own.series.trim("gpt", 1, 0, 9),
    lambda own: own.series.drop("gpt", 1, 0, 9),
    lambda own: own.series.remove("gpt", 1, 9),
    lambda own: own.series.remove("none", 1, 9),
    lambda own: own.runs.publish({"gpt": '{"is": "old"}'}, 8),
    lambda own: own.runs.withdraw(["gpt"]),
]


@pytest.mark.parametrize("write", WRITES)
def test_an_owner_of_the_past_cannot_write(
    write: Callable[[PartitionLedger], object], ledger: PostgresLedger
) -> None:
    """Whatever it is; the owner of now can, and others are not touched by it."""
    past, other = ledger.take(1, 3), ledger.take(2, 1)
    fill(past)
    before = contents(ledger, past)
    own = ledger.take(1, 4)
    with pytest.raises(StorageError, match=r"partition 1 of the ledger .* epoch 4, not 3") as it:
        write(past)

    assert it.value.fault is StorageFault.GONE
    assert contents(ledger, own) == before
    write(own)
    assert other.alert_events.add([event("other")])


def test_only_a_higher_epoch_takes_a_partition(ledger: PostgresLedger) -> None:
    """The same one may come back."""
    ledger.take(0, 5)
    ledger.take(0, 5)
    with pytest.raises(StorageError, match="epoch 5, not 4") as caught:
        ledger.take(0, 4)
    assert caught.value.fault is StorageFault.GONE
    with pytest.raises(ValueError, match="partition 8: there are 0 to 7"):
        ledger.take(PARTITIONS, 1)


def test_of_two_owners_with_the_same_epoch_the_first_one_has_the_partition(
    ledger: PostgresLedger,
) -> None:
    """There may be two once NATS has lost its data."""
    own = ledger.take(1, 7, "a")
    with pytest.raises(StorageError) as caught:
        ledger.take(1, 7, "b")
    assert (caught.value.fault, caught.value.epoch) == (StorageFault.GONE, 7)
    ledger.take(1, 7, "a")
    own.runs.publish({"gpt": "{}"}, 7)
    ledger.take(1, 8, "b")
    with pytest.raises(StorageError) as caught:
        own.runs.publish({"gpt": "{}"}, 8)
    assert caught.value.fault is StorageFault.GONE


def test_who_sent_notifications_cannot_write_them(ledger: PostgresLedger) -> None:
    """They are of no partition, and have an epoch all the same."""
    past = ledger.take_deliveries(1)
    past.save("oncall", TargetChange(Progress(1)))
    own = ledger.take_deliveries(2)
    writes: list[Callable[[], None]] = [
        lambda: past.save("oncall", TargetChange(Progress(0))),
        lambda: past.keep_only([]),
    ]
    for write in writes:
        with pytest.raises(StorageError, match="notifications of the ledger") as caught:
            write()
        assert caught.value.fault is StorageFault.GONE

    found = own.load("oncall")
    assert found is not None
    assert found.progress == Progress(1)


def test_taking_over_waits_for_what_is_being_written(
    ledger: PostgresLedger, ledger_database: LedgerDatabase
) -> None:
    """So that nothing of the past comes after it."""
    ledger.take(0, 1)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as threads:
        with ledger._db.writing(database.Fence(0, 1)):
            taking = threads.submit(ledger.take, 0, 2)
            wait_until(lambda: ledger_database.execute(waiting), "it waits")
            assert not taking.done()
        assert taking.result(PATIENCE_S).epoch == 2


def test_an_owner_that_is_stopped_in_the_middle_keeps_nobody(
    ledger_database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends its transaction; what it wrote in it is not there."""
    monkeypatch.setattr(database, "STALLED_MS", 200)
    stopped = ledger_database.open()
    past = stopped.take(0, 1)
    fill(past)

    def stop_in_the_middle() -> None:
        with stopped._db.writing(database.Fence(0, 1)) as connection:
            connection.execute("DELETE FROM alert_events")
            ledger_database.ledger.take(0, 2)

    with pytest.raises(StorageError, match=r"the ledger .* failed") as caught:
        stop_in_the_middle()
    stopped.close()

    assert caught.value.fault is StorageFault.FAILED
    assert ledger_database.ledger.alert_events.newest() == 3


# Cursors.


def test_cursors_have_no_gap_in_the_order_in_which_they_are_seen(ledger: PostgresLedger) -> None:
    """With several owners, events that were stored before, and owners that fail meanwhile."""
    owners = [ledger.take(partition, 1) for partition in range(3)]
    ledger.take(3, 2)
    rounds, seen, written = 25, [0], threading.Event()

    def write(own: PartitionLedger) -> None:
        for number in range(rounds):
            again = event(f"{own.partition}-{max(number - 1, 0)}")
            own.alert_events.add([again, event(f"{own.partition}-{number}")])

    def fail() -> None:
        past = database.Fence(3, 2)
        for _ in range(rounds):
            with suppress(ZeroDivisionError), ledger._db.writing(past) as connection:
                connection.execute("UPDATE alert_cursor SET newest = newest + 1")
                raise ZeroDivisionError

    def follow() -> None:
        while True:
            is_last = written.is_set()
            page = ledger.alert_events.after(seen[-1], most=7)
            seen.extend(own.cursor for own in page)
            if is_last and not page:
                return

    with ThreadPoolExecutor(5) as threads:
        following = threads.submit(follow)
        done = [threads.submit(write, own) for own in owners]
        wait([*done, threads.submit(fail)])
        written.set()
        following.result(PATIENCE_S)

    assert seen == list(range(rounds * len(owners) + 1))
    assert [len(own.alert_events.after(0)) for own in owners] == [rounds] * len(owners)


# What is outside.


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart_of_the_server_costs_calls_meanwhile(
    how: signal.Signals, ledger: PostgresLedger, postgres: PostgresServer
) -> None:
    """The very same one succeeds later, over new connections; a crash is no different."""
    own = ledger.take(1, 1)
    fill(own)
    before = contents(ledger, own)
    postgres.stop(how)
    try:
        calls: list[Callable[[], object]] = [
            ledger.check,
            lambda: own.state.save({"position": b"1"}, []),
            lambda: own.alert_events.add([event("later")]),
        ]
        for call in calls:
            with pytest.raises(StorageError, match=r"the ledger .* failed: [^\n]*$") as caught:
                call()
            assert caught.value.fault is StorageFault.FAILED
    finally:
        postgres.start()

    assert contents(ledger, own) == before
    for call in calls:
        call()
    assert ledger.alert_events.newest() == 4


@pytest.fixture
def small_disk(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database on a file system of its own, of 30 MB."""
    place = postgres.directory / "small"
    place.mkdir()
    mount = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        "size=30m,mode=700,uid=nobody,gid=nogroup",
        "tmpfs",
        str(place),
    ]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        postgres.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        url = postgres.make_database("TABLESPACE small")
        yield url
        postgres.execute(f"DROP DATABASE {url.rpartition('/')[2]}")
        postgres.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


FILLER = """
    CREATE TABLE filler (body bytea);
    ALTER TABLE filler ALTER COLUMN body SET STORAGE EXTERNAL;
    INSERT INTO filler SELECT decode(repeat('00', 1 << 20), 'hex') FROM generate_series(1, 18)
"""


def test_a_disk_that_is_really_full(small_disk: str, postgres: PostgresServer) -> None:
    """All that was there stays, and once there is room the same call succeeds."""
    large = bytes(9 << 20)
    with closing(open_ledger(small_disk, CLUSTER_ID, PARTITIONS)) as ledger:
        own = ledger.take(0, 1)
        fill(own)
        postgres.execute(FILLER, url=small_disk)
        with pytest.raises(StorageError, match=r"the disk of the ledger .* is full: ") as caught:
            own.state.save({"position": large}, [])
        assert caught.value.fault is StorageFault.FULL
        assert own.state.part("position") == b"1"
        postgres.execute("DROP TABLE filler", url=small_disk)
        own.state.save({"position": large}, [])

        assert own.state.part("position") == large


def test_the_server_lets_go_of_a_machine_that_vanished(ledger_database: LedgerDatabase) -> None:
    """Within a minute, so that the node in its place finds room."""
    with closing(connections.connect(Address(ledger_database.url))) as connection:
        idle_s, every_s, tries = (
            int((connection.execute(f"SHOW tcp_keepalives_{name}").fetchone() or "0")[0])
            for name in ("idle", "interval", "count")
        )
    assert 0 < idle_s + every_s * tries <= 60


def test_all_connections_in_use_is_busy(
    ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that take long keep nobody from writing."""
    monkeypatch.setattr(connections, "WAIT_S", 0.1)
    own = ledger.take(0, 1)
    fill(own)
    opened = [own.series.read("gpt", 1, None) for _ in range(database.READERS)]
    for each in opened:
        each.__enter__()
    with pytest.raises(StorageError, match="all 17 connections to the ledger were in use") as it:
        ledger.check()
    assert it.value.fault is StorageFault.BUSY
    own.runs.publish({"new": "{}"}, 8)
    for each in opened:
        each.__exit__(None, None, None)

    assert len(ledger.runs.after()) == 2


def test_a_lock_that_is_held_for_long_is_busy(
    ledger_database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an owner that stores events, for it has the counter; nothing is changed."""
    monkeypatch.setattr(database, "LOCK_MS", 50)
    with closing(ledger_database.open()) as ledger:
        own, other = ledger.take(0, 1), ledger.take(1, 1)
        with ledger._db.writing(database.Fence(0, 1)) as connection:
            connection.execute("UPDATE alert_cursor SET newest = newest + 1")
            with pytest.raises(StorageError, match=r"the ledger .* is busy: ") as caught:
                other.alert_events.add([event("x")])
        assert caught.value.fault is StorageFault.BUSY
        assert other.alert_events.newest() == 0
        assert own.alert_events.add([event("y")]) == 2


def test_a_reader_sees_one_moment(ledger: PostgresLedger) -> None:
    """Whatever is written and deleted while it reads."""
    own = ledger.take(0, 1)
    fill(own)
    with own.series.read("gpt", 1, None) as (frames, _):
        before = frames.spans()
        own.series.save("gpt", 1, [chunk(2)])
        assert own.series.remove("gpt", 1, 9)
        assert frames.spans() == before != []


# What is refused.


def refusal(url: str, cluster_id: str = CLUSTER_ID, partitions: int = PARTITIONS) -> StorageError:
    with pytest.raises(StorageError) as caught:
        open_ledger(url, cluster_id, partitions)
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_ledger_of_another_cluster_is_refused(ledger_database: LedgerDatabase) -> None:
    """In one line, and so is another number of partitions."""
    opened = ledger_database.open()
    opened.close()
    url = ledger_database.url
    other, partitions = refusal(url, "77"), refusal(url, partitions=64)

    assert "is of cluster 5f0c, and this one is 77; give" in str(other)
    assert "made with 8 partitions, and the cluster has 64" in str(partitions)
    assert {other.fault, partitions.fault} == {StorageFault.UNUSABLE}
    with pytest.raises(StorageError, match="the ledger is closed"):
        opened.check()


def test_a_newer_schema_is_refused(postgres: PostgresServer) -> None:
    """It stays as it is; a database of an older one is brought up to date."""
    url = postgres.make_database()
    open_ledger(url, CLUSTER_ID, PARTITIONS).close()
    postgres.execute("UPDATE gradwatch.schema_version SET version_num = '9999'", url=url)
    found = refusal(url)

    assert found.fault is StorageFault.UNUSABLE
    assert "has schema version 9999, this gradwatch knows up to 0002; use the" in str(found)
    postgres.execute("DROP SCHEMA gradwatch CASCADE; CREATE SCHEMA gradwatch", url=url)
    open_ledger(url, CLUSTER_ID, PARTITIONS).close()


def test_tables_of_the_first_version_are_brought_up_to_date(postgres: PostgresServer) -> None:
    """With what is in them."""
    url = postgres.make_database()
    with closing(open_ledger(url, CLUSTER_ID, PARTITIONS)) as before:
        before.take(1, 7).runs.publish({"gpt": "{}"}, 7)
    postgres.execute("ALTER TABLE gradwatch.partitions DROP COLUMN owner", url=url)
    postgres.execute("DROP INDEX gradwatch.runs_of_partition", url=url)
    postgres.execute("UPDATE gradwatch.schema_version SET version_num = '0001'", url=url)
    with closing(open_ledger(url, CLUSTER_ID, PARTITIONS)) as after:
        with pytest.raises(StorageError):
            after.take(1, 7, "a")
        after.take(1, 8, "a")
        assert after.runs.get("gpt") is not None


def test_three_nodes_may_make_it_at_once(postgres: PostgresServer) -> None:
    """One does, the others wait for it."""
    url = postgres.make_database()
    together = threading.Barrier(3)

    def start(partition: int) -> int:
        together.wait(PATIENCE_S)
        ledger = PostgresLedger(url, CLUSTER_ID, PARTITIONS, Clock())
        newest = ledger.take(partition, 1).alert_events.add([event(str(partition))])
        ledger.close()
        return newest

    with ThreadPoolExecutor(3) as threads:
        assert sorted(threads.map(start, range(3), timeout=PATIENCE_S)) == [1, 2, 3]


def test_a_database_of_another_encoding_is_refused(postgres: PostgresServer) -> None:
    """Names of runs may have any letter."""
    url = postgres.make_database("ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")

    assert "has the encoding SQL_ASCII; make one with ENCODING 'UTF8'" in str(refusal(url))


def test_no_error_has_the_password(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the URL is wrong, which shifts its parts."""
    url, secret = postgres.url(), quote(PASSWORD, safe="")
    wrong = [
        url.replace("gradwatch:", f"{STRANGER}:"),
        url.replace("127.0.0.1", "127.0.0.2"),
        f"{url}-missing",
        url.replace(secret, PASSWORD),
        url.replace(secret, "S3kret/"),
        url.replace(secret, "S3kret@"),
        url.replace(secret, "S3kret?"),
        url.replace(secret, "S3kret:1"),
        url.replace("postgresql://", ""),
        url.replace("postgresql://", "http://"),
        f"{url}?password=S3kret&unknown=1",
        f"host=127.0.0.1 password={PASSWORD}",
        "S3kret",
        "",
    ]
    found = [str(refusal(own)) for own in wrong]

    assert "password authentication failed" in found[0]
    assert 'database "postgres-missing" does not exist' in found[2]
    assert all("is not a URL like postgresql://" in own for own in found[3:])
    assert "S3kret" not in f"{found}{caplog.text}"


def test_a_password_that_is_changed_meanwhile_is_told(postgres: PostgresServer) -> None:
    """Who is connected stays so; whoever connects anew is told what to do. Then it goes on."""
    postgres.execute(f"CREATE ROLE {STRANGER} LOGIN PASSWORD 'one'")
    url = postgres.make_database(f"OWNER {STRANGER}")
    database = url.rpartition("/")[2]
    secret = quote(PASSWORD, safe="")
    ledger = PostgresLedger(
        url.replace(f"gradwatch:{secret}", f"{STRANGER}:one"), CLUSTER_ID, PARTITIONS, Clock()
    )
    try:
        postgres.execute(f"ALTER ROLE {STRANGER} PASSWORD 'two'")
        ledger.check()
        postgres.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = %s",
            (STRANGER,),
        )
        with pytest.raises(StorageError, match=r"does not let us in: .*; give --ledger") as caught:
            ledger.check()
        assert caught.value.fault is StorageFault.UNUSABLE
        assert "\n" not in str(caught.value)
        postgres.execute(f"ALTER ROLE {STRANGER} PASSWORD 'one'")
        ledger.check()
    finally:
        ledger.close()
        postgres.execute(f"DROP DATABASE {database} WITH (FORCE)")
        postgres.execute(f"DROP ROLE {STRANGER}")


# Names, and what each partition has.


def test_any_name_of_a_run_is_kept(ledger: PostgresLedger) -> None:
    """Everywhere it is; PostgreSQL itself has no text with a NUL."""
    own = ledger.take(0, 1)
    fill(own, ODD)
    log = ledger.take_deliveries(1)
    log.save(ODD, TargetChange(Progress(1, ODD, error=ODD)))
    events, of_run, state, series, _, runs = contents(ledger, own, ODD)

    assert [found.run for found in events] == [ODD] * 3
    assert [found.run for _, found in of_run] == [ODD] * 3
    assert state[1] == [ODD]
    assert series[1][0].run == runs[0].run == ODD
    target = log.load(ODD)
    assert target is not None
    assert target.progress == Progress(1, ODD, error=ODD)
    own.runs.withdraw([ODD])
    log.keep_only([ODD])
    assert (ledger.runs.after(), log.load(ODD)) == ([], target)


def test_partitions_know_nothing_of_each_other(ledger: PostgresLedger) -> None:
    """But for the cursor of alert events, which is that of all."""
    own, other = ledger.take(0, 1), ledger.take(1, 1)
    fill(own)
    assert (other.alert_events.newest(), other.used_bytes()) == (0, 0)
    assert other.alert_events.add([event("x", "other")]) == 4
    other.runs.withdraw(["gpt"])
    assert not other.series.remove("gpt", 1, 9)

    assert (other.state.runs(), other.state.part("position")) == ([], None)
    assert (other.series.sizes(), other.series.layers("gpt", 1)) == ([], b"")
    assert [found.cursor for found in ledger.alert_events.after(0)] == [1, 2, 3, 4]
    assert [size.cursor for size in own.alert_events.sizes(0, 9)] == [1, 2, 3]
    assert [found.cursor for found in other.alert_events.trim(FAR_FUTURE_NS, 9)] == []
    assert ledger.runs.get("gpt") is not None


def test_runs_are_published_and_found_in_the_order_of_their_names(ledger: PostgresLedger) -> None:
    """Page by page; a run has what was published last."""
    own = ledger.take(1, 1)
    own.runs.publish({"b": "1", "a": "2", "Z": "3"}, 7)
    own.runs.publish({"b": '{"new": 1}'}, 9)
    page = ledger.runs.after(most=2)

    assert [(found.run, found.updated_ns) for found in page] == [("Z", 7), ("a", 7)]
    (last,) = ledger.runs.after("a", most=2)
    assert ledger.runs.get("b") == last
    assert (last.partition, last.summary, last.updated_ns) == (1, '{"new": 1}', 9)
    assert ledger.runs.get("c") is None
    own.runs.withdraw(["a", "c"])
    assert [found.run for found in ledger.runs.after()] == ["Z", "b"]


def test_used_bytes_are_those_of_what_is_there(
    ledger: PostgresLedger, ledger_database: LedgerDatabase
) -> None:
    """Counted on the way as they are when they are asked for anew."""
    own = ledger.take(0, 1)
    assert own.used_bytes() == 0
    fill(own)
    fill(own)
    own.state.save({"position": bytes(5_000)}, [saved("x")])
    own.alert_events.trim_run("gpt", 1, 1)
    own.series.drop("gpt", 1, 0, 1)
    anew = ledger.take(0, 1)

    assert 5_000 < own.used_bytes() == anew.used_bytes() < 6_000
    ledger_database.fill()
    with pytest.raises(StorageError):
        own.alert_events.add([event("y")])
    ledger_database.make_room()
    assert own.used_bytes() == anew.used_bytes()
