"""Views for readers: built when one asks, of committed state, and no more often than it changes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Entry, Forgotten, Gap, Opened
from gradwatch_server.engine.commands import CommandError
from gradwatch_server.engine.publishing import MAX_PAUSE_NS, SLICE_RUNS, PublishedState, Publishing
from gradwatch_server.storage.rows import StorageError
from gradwatch_wire import Ack, Hello
from tests.support.engine import Start, attached
from tests.support.waiting import wait_until
from tests.support.whole_state import WholeState


class Reader:
    """A state, what is published of it, and a clock that stands still."""

    def __init__(self, *runs: str) -> None:
        self.now_ns = 10**18
        self.woken = 0
        self.state = WholeState()
        self.published = PublishedState()
        clock = Clock(lambda: 0, lambda: self.now_ns)
        self.publishing = Publishing(self.state, self.published, clock, self._wake)
        for run in runs:
            self.put(run, Opened(run.encode().rjust(16), Hello(run=run, rank=0, world=1)))
        self.publishing.publish()

    def _wake(self) -> None:
        self.woken += 1

    def put(self, run: str, body: Any) -> None:
        self.state.apply(Entry(self.now_ns, body))
        self.publishing.mark_changed(run)

    def ask(self, run: str) -> Any:
        future = self.publishing.request(run)
        self.publishing.build(self.publishing.find_wanted(), self.state.runs.get)
        return future.result(0)


def test_a_view_stays_until_its_run_has_changed() -> None:
    reader = Reader("one", "two")
    one, two = reader.ask("one"), reader.ask("two")
    reader.put("two", Gap(b"two".rjust(16), 1, 3))
    reader.publishing.publish()

    assert reader.ask("one") is one
    assert (two.lost, reader.ask("two").lost) == (0, 3)
    assert reader.published.newest("two").run_revision > two.run_revision  # type: ignore[union-attr]
    assert reader.published.newest("one") is one
    assert reader.ask("three") is None


def test_readers_share_one_request_and_wake_the_engine() -> None:
    reader = Reader("one")
    futures = [reader.publishing.request("one") for _ in range(3)]

    assert reader.publishing.are_waiting
    assert futures[0] is futures[1] is futures[2]
    assert not futures[0].cancel()
    assert reader.woken == 3
    reader.publishing.build(reader.publishing.find_wanted(), reader.state.runs.get)
    assert not reader.publishing.are_waiting


def test_a_run_that_left_memory_is_taken_back() -> None:
    reader = Reader("one", "two")
    reader.ask("one")
    reader.put("one", Forgotten("one", 1))
    reader.publishing.publish()

    assert set(reader.published.revisions) == {"two"}
    assert reader.published.views == {}


def test_views_are_built_in_slices_and_take_their_share_of_the_time() -> None:
    names = [f"run-{number}" for number in range(SLICE_RUNS + 5)]
    reader = Reader(*names)
    for name in names:
        reader.publishing.request(name)
    wanted = reader.publishing.find_wanted()
    build = reader.publishing._build

    def slow(name: str, find: Any) -> Any:
        reader.now_ns += 1_000_000
        return build(name, find)

    reader.publishing._build = slow  # type: ignore[method-assign]
    reader.publishing.build(wanted, reader.state.runs.get)

    assert len(wanted) == SLICE_RUNS
    reader.publishing.build(reader.publishing.find_wanted(), reader.state.runs.get)
    assert reader.publishing.find_wanted() == []
    reader.now_ns += 5 * SLICE_RUNS * 1_000_000
    assert len(reader.publishing.find_wanted()) == 5
    reader.publishing.build(reader.publishing.find_wanted(), reader.state.runs.get)
    reader.now_ns += MAX_PAUSE_NS
    assert reader.published.views.keys() == set(names)


def test_nobody_waits_for_an_engine_that_cannot_answer() -> None:
    reader = Reader("one")

    def unreadable(_run: str) -> Any:
        raise StorageError("disk I/O error")

    future = reader.publishing.request("one")
    reader.publishing.build(["one"], unreadable)
    with pytest.raises(CommandError, match="disk I/O error"):
        future.result(0)

    future = reader.publishing.request("one")
    reader.publishing.close()
    for own in (future, reader.publishing.request("one")):
        with pytest.raises(CommandError, match="the aggregator stops"):
            own.result(0)


def test_a_run_can_be_seen_while_nothing_can_be_written(start: Start) -> None:
    running, peer = attached(start())
    peer.steps(0, 1.0)
    db = running.store.db
    db.execute(f"PRAGMA max_page_count={db.number('page_count')}")
    step, acked = 0, peer.seq
    while running.published.fault is None:
        step += 1
        peer.stats(step)
        answers = [own for own in peer.received() if isinstance(own, Ack)]
        acked = max([acked, *(answer.acked for answer in answers)])
    view = running.view()

    assert acked <= view.stored < step + 2
    assert running.published.fault is not None
    db.execute("PRAGMA max_page_count=1000000")
    running.shows(stored=step + 2)


def test_many_threads_read_while_the_engine_works(start: Start) -> None:
    running, peer = attached(start())
    seen: list[list[int]] = [[] for _ in range(4)]
    over = threading.Event()

    def read(own: list[int]) -> None:
        while not over.is_set():
            view = running.view()
            own.append(0 if view is None else view.frames)

    threads = [threading.Thread(target=read, args=(own,)) for own in seen]
    for thread in threads:
        thread.start()
    for step in range(50):
        peer.stats(step)
    peer.acked()
    running.shows(frames=50)
    wait_until(lambda: all(own and own[-1] == 50 for own in seen))
    over.set()
    for thread in threads:
        thread.join()

    assert all(own == sorted(own) for own in seen)
