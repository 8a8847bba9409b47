"""A data directory that goes away under a running aggregator, or that lost what it had before."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Entry, Tick
from gradwatch_server.storage.checksums import of_row
from gradwatch_server.storage.encoding import pack_entries, unpack_entries
from gradwatch_server.storage.rows import LogEntry, NewAlertEvent, StorageError, StorageFault
from gradwatch_server.storage.sqlite.database import PAGE_BYTES
from gradwatch_server.storage.sqlite.lock import LOCK_NAME
from gradwatch_server.storage.sqlite.store import DATABASE_NAME, SQLiteStore
from tests.support.aggregator import Serve
from tests.support.waiting import PATIENCE_S, wait_until

FAR_NS = 4_100_000_000_000_000_000
"""In 2099."""

TICK = [LogEntry("gpt", Entry(1, Tick()))]


def replace(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.mkdir()


def restore(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    shutil.copytree(directory.with_name("elsewhere"), directory)


WAYS: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "replaced": replace,
    "restored": restore,
    "database removed": lambda directory: (directory / DATABASE_NAME).unlink(),
    "WAL removed": lambda directory: (directory / f"{DATABASE_NAME}-wal").unlink(),
    "lock removed": lambda directory: (directory / LOCK_NAME).unlink(),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_committed_into_files_that_nobody_finds(tmp_path: Path, way: str) -> None:
    """S40: whatever it is that is not there any more."""
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.log.append(TICK)
    store.check()
    WAYS[way](tmp_path / "data")

    for write in (
        store.check,
        lambda: store.log.append(TICK),
        lambda: store.alert_events.add([NewAlertEvent("a", "firing", "gpt", "{}")]),
    ):
        with pytest.raises(StorageError, match="was removed or replaced") as caught:
            write()
        assert caught.value.fault is StorageFault.GONE
    assert store.log.last("gpt") == 1
    store.close()


def test_a_store_that_is_gone_takes_nothing_from_the_one_in_its_place(tmp_path: Path) -> None:
    """SQLite deletes the WAL by its name when it closes a file, and it is another's by then; it
    looks whether the file has moved."""
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.log.append(TICK)
    replace(tmp_path / "data")
    other = SQLiteStore.open(tmp_path / "data", Clock())
    other.log.append(TICK)

    store.close()
    assert (tmp_path / "data" / f"{DATABASE_NAME}-wal").exists()
    other.log.append(TICK)
    assert other.log.last("gpt") == 2
    other.close()


def stops(service: Any) -> None:
    """Wait until it has ended, and told why."""
    assert service.process.wait(PATIENCE_S) == 1
    assert "was removed or replaced while it was in use" in service.errors
    assert "Traceback" not in service.errors


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_an_aggregator_whose_directory_is_gone_stops(serve: Serve, way: str) -> None:
    """S40: with one line that says what to do, and without an acknowledgement."""
    service = serve()
    peer = service.peer().attach()
    peer.steps(0, 1.0, 1.0)
    acked = peer.seq
    WAYS[way](service.directory)
    for step in range(2, 40):
        peer.stats(step)

    stops(service)
    assert [own for own in peer.received() if getattr(own, "acked", 0) > acked] == []


def test_it_stops_although_nobody_sends(serve: Serve) -> None:
    service = serve()
    shutil.rmtree(service.directory)

    stops(service)


def killed_without_wal(service: Any) -> None:
    service.stop(signal.SIGKILL)
    for suffix in ("-wal", "-shm"):
        (service.directory / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)


def emptied(service: Any) -> None:
    service.stop()
    (service.directory / DATABASE_NAME).write_bytes(b"")


def deleted(service: Any) -> None:
    service.stop()
    (service.directory / DATABASE_NAME).unlink()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lose", [killed_without_wal, emptied, deleted])
def test_an_empty_log_where_there_was_one_is_told(
    serve: Serve, lose: Callable[[Any], None]
) -> None:
    """S42: on the log, by /readyz and in the metrics; alert events do not get old cursors again."""
    service = serve()
    peer = service.peer().attach()
    peer.steps(0, *[float("nan"), 1.0] * 30)
    service.shows(peer)
    cursor = service.json("/healthz")["cursor"]
    lock = service.directory / LOCK_NAME
    wait_until(lambda: f"alerts {cursor}" in lock.read_text(), "it is noted")
    at_least = int(lock.read_text().partition("log ")[2].split()[0])
    assert (at_least >= 1, cursor >= 1) == (True, True)
    lose(service)
    service.start()

    assert service.json("/runs") == []
    assert f"is empty, and had {at_least}" in service.errors or "ends at entry" in service.errors
    ready = service.json("/readyz")
    assert ready["status"] == "ready"
    assert "lost" in ready["lost"]
    missing = [
        line for line in service.get("/metrics").text.splitlines() if "log_rows_missing " in line
    ]
    assert int(float(missing[-1].split()[-1])) >= 1
    service.peer(run="next").attach().steps(0, float("nan"))
    wait_until(lambda: service.json("/healthz")["cursor"] > cursor, "cursors go on")
    told = service.errors.count("lost")
    service.stop()
    service.start()
    assert service.json("/readyz") == {"status": "ready"}
    assert service.errors.count("lost") == told


@pytest.mark.exhaustive
def test_rows_of_a_damaged_page_are_told_by_a_service_that_is_ready(serve: Serve) -> None:
    """S43: how many, and where the damaged file is; another start says nothing of it."""
    service = serve()
    peer = service.peer().attach([f"l{i}" for i in range(500)])
    for step in range(60):
        peer.stats(step, [1.0] * 500)
    peer.acked()
    service.stop()
    path = service.directory / DATABASE_NAME
    data = bytearray(path.read_bytes())
    at = data.rindex(peer.session) // PAGE_BYTES * PAGE_BYTES
    data[at : at + PAGE_BYTES] = b"\xff" * PAGE_BYTES
    path.write_bytes(data)
    service.start()

    (kept,) = service.directory.glob(f"{DATABASE_NAME}.damaged-*")
    ready = service.json("/readyz")
    assert ready["status"] == "ready"
    assert re.search(r"at least [1-9]\d* rows could not be read|the end of log", ready["lost"])
    assert f"sqlite3 {kept} .recover" in ready["lost"]
    assert ready["lost"] in service.errors
    peer.greet()
    peer.stats(60, [1.0] * 500)
    peer.acked()
    service.stop()
    service.start()
    assert service.json("/readyz") == {"status": "ready"}


def test_what_was_noted_stands_until_somebody_compared_it(tmp_path: Path) -> None:
    """A start that fails, because a port is taken, is not to forget it."""
    store = SQLiteStore.open(tmp_path, Clock())
    assert store.find_loss() is None
    for _ in range(5):
        store.log.append(TICK)
    store.close()
    (tmp_path / DATABASE_NAME).unlink()
    SQLiteStore.open(tmp_path, Clock()).close()

    store = SQLiteStore.open(tmp_path, Clock())
    loss = store.find_loss()
    assert loss is not None
    assert loss.rows == 5
    store.close()


def test_a_clean_start_finds_no_loss(tmp_path: Path) -> None:
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.find_loss()
    store.log.append(TICK * 5)
    store.check()
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    store.close()
    for directory in (tmp_path / "data", tmp_path / "killed"):
        store = SQLiteStore.open(directory, Clock())
        assert (store.log.last("gpt"), store.find_loss()) == (5, None)
        store.close()
    (tmp_path / "data" / LOCK_NAME).write_text(f"{os.getpid()}\n")
    store = SQLiteStore.open(tmp_path / "data", Clock())
    assert store.find_loss() is None
    store.close()


def test_a_log_that_was_stamped_in_another_century_keeps_it_for_itself(serve: Serve) -> None:
    """S48: what comes now has the time it is; it is told once, and what was there stays."""
    service = serve()
    peer = service.peer().attach()
    peer.steps(0, 1.0, 1.0)
    service.shows(peer)
    service.stop()
    with sqlite3.connect(service.directory / DATABASE_NAME) as db:
        rows = db.execute("SELECT id, run, is_head, first, last, body FROM log").fetchall()
        for number, run, is_head, first, last, body in rows:
            entries = unpack_entries(body)
            far = [(own, dataclasses.replace(entry, received_ns=FAR_NS)) for own, entry in entries]
            packed = pack_entries(far)
            checksum = of_row(run, is_head, first, last, FAR_NS, packed)
            update = "UPDATE log SET received_ns = ?, body = ?, checksum = ? WHERE id = ?"
            db.execute(update, (FAR_NS, packed, checksum, number))
        for table in ("saved_state", "saved_runs", "saved_attempts"):
            db.execute(f"DELETE FROM {table}")
    db.close()
    service.start()
    later = service.peer(run="next").attach()
    later.steps(0, 1.0, 1.0)
    service.shows(later)

    times = {run["run"]: run["updated_at"] for run in service.json("/runs")}
    assert times["gpt"].startswith("2099-")
    assert times["next"].startswith(time.strftime("%Y-", time.gmtime()))
    assert service.errors.count("the system's clock is far behind") == 1
    peer.greet()
    peer.steps(2, *[1.0] * 5)
    service.shows(peer)
    assert service.health("gpt")["step"] == 6
