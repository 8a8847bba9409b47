"""Alert events in SQLite: readers have connections of their own, which cannot write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.storage.rows import NewAlertEvent, StorageError, StorageFault
from gradwatch_server.storage.sqlite.store import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    # A name that means something in a URI, which is how a reader opens the file.
    store = SQLiteStore.open(tmp_path / "da?ta%20#1", Clock())
    yield store
    store.close()


def test_a_reader_sees_in_any_thread_what_is_committed(store: SQLiteStore) -> None:
    seen: list[int] = []
    for number in range(5):
        store.alert_events.add([NewAlertEvent(f"a{number}", "firing", "gpt", "{}")])
        reader = threading.Thread(target=lambda: seen.append(store.alert_events.newest()))
        reader.start()
        reader.join()

    assert seen == [1, 2, 3, 4, 5]


def test_a_reader_cannot_write(store: SQLiteStore) -> None:
    with pytest.raises(StorageError, match="readonly"), store.db.reading() as reader:
        reader.row("DELETE FROM alert_events")


def test_what_a_reader_cannot_read_is_a_storage_error(store: SQLiteStore) -> None:
    """Routes know no other."""
    path = Path(store.name)
    store.close()
    path.write_bytes(b"nonsense" * 1000)

    with pytest.raises(StorageError) as caught:
        store.alert_events.after(0)
    assert caught.value.fault is StorageFault.DAMAGED


@pytest.mark.parametrize("body", ['{"id": "a', "", "[1]", b"{\xff}", 7], ids=repr)
def test_a_damaged_event_costs_itself(
    store: SQLiteStore, body: object, caplog: pytest.LogCaptureFixture
) -> None:
    """S41: all others are read, a full page is full, and it is told once."""
    store.alert_events.add(
        [NewAlertEvent(f"a{n}", "firing", "gpt", f'{{"id": "a{n}"}}') for n in range(6)]
    )
    store.db.execute("UPDATE alert_events SET body = ? WHERE cursor IN (1, 3)", (body,))

    for _ in range(2):
        assert [event.cursor for event in store.alert_events.after(0)] == [2, 4, 5, 6]
    assert [event.cursor for event in store.alert_events.after(0, limit=2)] == [2, 4]
    assert [event.cursor for event in store.alert_events.after(2, "gpt", limit=3)] == [4, 5, 6]
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("alert event 1 is left out (told once): ")


def test_an_event_that_says_something_else_is_left_out(store: SQLiteStore) -> None:
    """S41: a flipped bit in a string leaves it JSON."""
    store.alert_events.add(
        [NewAlertEvent(f"a{n}", "firing", "gpt", f'{{"id": "a{n}"}}') for n in range(3)]
    )
    store.db.execute("UPDATE alert_events SET body = replace(body, 'a', 'b') WHERE cursor < 3", ())

    assert [event.alert["id"] for event in store.alert_events.after(0)] == ["a2"]


def test_a_cursor_is_never_used_again(store: SQLiteStore) -> None:
    store.alert_events.add([NewAlertEvent(name, "firing", "gpt", "{}") for name in "ab"])
    store.db.execute("DELETE FROM alert_events WHERE cursor = 2")

    assert store.alert_events.add([NewAlertEvent("c", "firing", "gpt", "{}")]) == 3
