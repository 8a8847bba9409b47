"""Writes that the store cannot take: tried again, shown while it lasts, given up at a stop."""

from __future__ import annotations

import threading

import pytest

from gradwatch_server.engine import transaction
from gradwatch_server.engine.publishing import PublishedState
from gradwatch_server.engine.transaction import retry_write
from gradwatch_server.storage.rows import StorageError, StorageFault


class Disk:
    """Takes what is written once it was asked often enough."""

    def __init__(self, published: PublishedState, num_faults: int) -> None:
        self.faults: list[str | None] = []  # what readers saw at each attempt
        self._published = published
        self._num_faults = num_faults

    def write(self) -> int:
        self.faults.append(self._published.fault)
        if len(self.faults) <= self._num_faults:
            raise StorageError("database or disk is full", StorageFault.FULL)
        return len(self.faults)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "RETRY_S", 0.0)


def no_wait(_seconds: float, _stopping: threading.Event) -> None:
    """Go on at once."""


def test_a_write_is_tried_until_it_is_done() -> None:
    """Readers learn why nothing moves, once, and that it is over."""
    published = PublishedState()
    disk = Disk(published, num_faults=3)
    done = retry_write(disk.write, published, threading.Event(), no_wait)

    assert done == 4
    full = "the log cannot be written: database or disk is full"
    assert disk.faults == [None, full, full, full]
    assert published.fault is None


def test_a_stop_ends_the_attempts() -> None:
    published, stopping = PublishedState(), threading.Event()
    disk = Disk(published, num_faults=10**9)

    assert not retry_write(disk.write, published, stopping, lambda *_: stopping.set())
    assert len(disk.faults) == 1
    assert published.fault is not None


def test_something_else_is_done_between_the_attempts() -> None:
    """The port is read on, say; it knows for how long, and what ends it."""
    published, stopping = PublishedState(), threading.Event()
    disk = Disk(published, num_faults=2)
    waits: list[tuple[float, threading.Event]] = []
    assert retry_write(disk.write, published, stopping, lambda s, stop: waits.append((s, stop)))
    assert waits == [(0.0, stopping)] * 2


def test_a_fault_of_ours_is_not_tried_again() -> None:
    def write() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        retry_write(write, PublishedState(), threading.Event(), no_wait)
