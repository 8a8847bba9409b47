"""Room for a connection: descriptors and threads are counted before ZeroMQ takes them."""

from __future__ import annotations

import threading

import pytest

from gradwatch._transport.room import THREADS, check_room
from tests.support.descriptors import descriptors


def test_where_there_is_room_nothing_is_left() -> None:
    threads, before = threading.active_count(), descriptors()
    check_room()

    assert (threading.active_count(), descriptors()) == (threads, before)


@pytest.mark.parametrize("free", range(THREADS))
def test_too_few_threads_are_one_clear_error(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    start = threading.Thread.start
    running: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if len(running) == free:
            msg = "can't start new thread"
            raise RuntimeError(msg)
        running.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(ValueError, match=f"^threads: 3 are needed, the system starts {free} more;"):
        check_room()
    assert not any(thread.is_alive() for thread in running)
