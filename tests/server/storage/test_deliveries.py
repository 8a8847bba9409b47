"""Deliveries that are kept: after a crash those that were saved last."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from gradwatch_server.storage.deliveries import (
    DeliveryLog,
    DeliveryProgress,
    DeliveryState,
    GroupTimes,
    SavedTarget,
    TargetChange,
)
from gradwatch_server.storage.postgres.database import PostgresDatabase
from gradwatch_server.storage.rows import StorageError
from gradwatch_server.storage.schema import SCHEMA_VERSION
from gradwatch_server.storage.sqlite.deliveries import DELIVERIES_NAME, open_deliveries
from tests.support.postgres_database import FreshDatabase

ENTRY = DeliveryState("a1", "gpt", "gpt", "nonfinite", "critical", "firing", 7, is_pending=True)

PROGRESS = DeliveryProgress(7, "gpt", 1.5, 0.5, 3, "it answers 503")


OpenLog: TypeAlias = Callable[[], AbstractContextManager[DeliveryLog]]


@pytest.fixture(params=["sqlite", "postgres"])
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLog]:
    """Open what is kept as one more process does."""
    if request.param == "sqlite":
        yield lambda: closing(open_deliveries(tmp_path))
        return
    lease = FreshDatabase(request.getfixturevalue("postgres")).lease()
    assert lease.acquire() is None
    yield lambda: closing(DeliveryLog(PostgresDatabase(lease)))
    lease.release()


@pytest.fixture
def log(open_log: OpenLog) -> Iterator[DeliveryLog]:
    with open_log() as made:
        yield made


def test_what_was_saved_is_found(log: DeliveryLog, open_log: OpenLog) -> None:
    second = replace(ENTRY, alert_id="b2", cursor=8, is_told=True, is_pending=False)
    times = {"gpt": GroupTimes(1.0, 2.0)}
    assert log.load("oncall") is None
    log.save("oncall", TargetChange(PROGRESS, [second, ENTRY], groups=times))
    log.save("other", TargetChange(DeliveryProgress(1)))
    with open_log() as found:
        assert found.load("oncall") == SavedTarget(PROGRESS, [ENTRY, second], times)
        assert found.load("other") == SavedTarget(DeliveryProgress(1), [], {})


def test_a_change_replaces_and_forgets(log: DeliveryLog) -> None:
    """Entries and groups, of that target alone."""
    times = {"gpt": GroupTimes(1.0)}
    for target in ("oncall", "other"):
        log.save(target, TargetChange(PROGRESS, [ENTRY], groups=times))
    told = replace(ENTRY, is_told=True)
    log.save("oncall", TargetChange(DeliveryProgress(8), [told]))
    assert log.load("oncall") == SavedTarget(DeliveryProgress(8), [told], times)
    log.save("oncall", TargetChange(DeliveryProgress(9), forgotten=["a1"], ended=["gpt"]))

    assert log.load("oncall") == SavedTarget(DeliveryProgress(9), [], {})
    assert log.load("other") == SavedTarget(PROGRESS, [ENTRY], times)


def test_a_target_that_is_not_set_any_more_is_forgotten(log: DeliveryLog) -> None:
    for target in ("oncall", "other"):
        log.save(target, TargetChange(PROGRESS, [ENTRY], groups={"gpt": GroupTimes()}))
    log.keep_only(["other"])

    assert log.load("oncall") is None
    assert log.load("other") is not None


def test_a_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log says what that means."""
    open_deliveries(tmp_path).close()
    path = tmp_path / DELIVERIES_NAME
    path.write_bytes(path.read_bytes()[:100] + b"no database" * 500)
    made = open_deliveries(tmp_path)
    made.close()

    assert "begins at the newest alert event" in caplog.text
    assert list(tmp_path.glob(f"{DELIVERIES_NAME}.damaged-*"))


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / DELIVERIES_NAME) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()

    said = f"it has schema version {SCHEMA_VERSION + 1}, this gradwatch writes .*newest alert"
    with pytest.raises(StorageError, match=said):
        open_deliveries(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot open the delivery log .*missing"):
        open_deliveries(tmp_path / "missing")
