"""Threads that a database holds: the end of the process waits for them, but not for ever."""

from __future__ import annotations

import threading

import pytest

from gradwatch_server.cluster.partitions import workers as module
from gradwatch_server.cluster.partitions.workers import THREADS, Workers
from tests.support.waiting import PATIENCE_S


def test_what_was_to_be_ended_is_ended() -> None:
    ended: list[int] = []
    workers = Workers()
    for number in range(3 * THREADS):
        workers.ending.submit(ended.append, number)
    workers.shut_down()
    assert sorted(ended) == list(range(3 * THREADS))
    assert not workers.do_hang


def test_what_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_S", 0.05)
    workers, go_on = Workers(), threading.Event()
    futures = [workers.ending.submit(go_on.wait, PATIENCE_S) for _ in range(THREADS + 1)]
    workers.shut_down()
    assert workers.do_hang
    assert futures[-1].cancelled()
    go_on.set()
