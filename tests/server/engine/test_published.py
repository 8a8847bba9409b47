"""Snapshots for readers: whole, and made no more often than readers can tell."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from gradwatch_server.core.entries import Entry, Gap, Opened
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.engine.published import PUBLISH_NS, SLICE_S, PublishedState, Publisher
from gradwatch_wire import Hello
from tests.support.whole_state import WholeState


@pytest.fixture(autouse=True)
def long_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch_server.engine.published.SLICE_S", math.inf)


@pytest.fixture
def state() -> WholeState:
    state = WholeState()
    for number, run in enumerate(("one", "two")):
        hello = Hello(run=run, rank=0, world=1)
        state.apply(Entry(number, Opened(number.to_bytes(16, "big"), hello)))
    return state


def test_only_runs_that_changed_get_new_snapshots(state: WholeState) -> None:
    published = PublishedState()
    publisher = Publisher(published)
    publisher.note_changed(["one", "two"])
    publisher.publish(state, PUBLISH_NS)
    before = published.runs
    state.apply(Entry(2, Gap((1).to_bytes(16, "big"), 1, 3)))
    publisher.note_changed(["two"])
    publisher.publish(state, 2 * PUBLISH_NS)

    assert published.runs is not before
    assert published.runs["one"] is before["one"]
    assert published.runs["two"] is not before["two"]


def test_snapshots_are_made_at_most_so_often(state: WholeState) -> None:
    published = PublishedState()
    publisher = Publisher(published)
    publisher.note_changed(["one"])
    publisher.publish(state, PUBLISH_NS)
    publisher.note_changed(["two"])
    publisher.publish(state, 2 * PUBLISH_NS - 1)
    assert set(published.runs) == {"one"}

    publisher.publish(state, 2 * PUBLISH_NS - 1, force=True)
    assert set(published.runs) == {"one", "two"}


def test_a_run_that_left_memory_after_it_changed_is_taken_back(state: WholeState) -> None:
    published = PublishedState()
    publisher = Publisher(published)
    publisher.note_changed(["one", "two"])
    publisher.publish(state, PUBLISH_NS)
    publisher.note_changed(["one"])
    publisher.remove("one")
    del state.runs["one"]
    publisher.publish(state, 2 * PUBLISH_NS)

    assert set(published.runs) == {"two"}


def test_a_run_that_left_memory_is_gone_with_the_next_snapshots(state: WholeState) -> None:
    published = PublishedState()
    publisher = Publisher(published)
    publisher.note_changed(["one", "two"])
    publisher.publish(state, PUBLISH_NS)
    before = published.runs
    publisher.remove("one")
    publisher.remove("two")
    publisher.note_changed(["two"])
    publisher.publish(state, 2 * PUBLISH_NS)

    assert set(before) == {"one", "two"}
    assert set(published.runs) == {"two"}
    publisher.publish(state, 3 * PUBLISH_NS)
    assert set(published.runs) == {"two"}


def test_snapshots_take_only_their_share_of_the_time(
    state: WholeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock_s[0])

    def slow(cost_s: float) -> None:
        def view(*arguments: Any) -> Any:
            clock_s[0] += cost_s
            return view_run(*arguments)

        monkeypatch.setattr("gradwatch_server.engine.published.view_run", view)

    published = PublishedState()
    publisher = Publisher(published)

    def publishes(now_ms: int) -> bool:
        before = published.runs
        publisher.note_changed(["one"])
        publisher.publish(state, now_ms * 1_000_000)
        return published.runs is not before

    slow(0.02)
    assert [publishes(now_ms) for now_ms in (1_000, 1_060, 1_190, 1_210)] == [
        *(True, False, False, True)
    ]
    slow(60.0)
    assert [publishes(now_ms) for now_ms in (1_500, 3_400, 3_600)] == [True, False, True]


def test_many_runs_are_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock_s[0])

    def view(*arguments: Any) -> Any:
        clock_s[0] += SLICE_S / 2
        return view_run(*arguments)

    monkeypatch.setattr("gradwatch_server.engine.published.view_run", view)
    monkeypatch.setattr("gradwatch_server.engine.published.SLICE_S", SLICE_S)
    names = ["a", "b", "c", "d", "e"]
    state = WholeState()
    for number, run in enumerate(names):
        hello = Hello(run=run, rank=0, world=1)
        state.apply(Entry(number, Opened(number.to_bytes(16, "big"), hello)))
    published = PublishedState()
    publisher = Publisher(published)
    publisher.note_changed(names)
    publisher.publish(state, PUBLISH_NS)
    assert list(published.runs) == ["a", "b"]
    publisher.note_changed(["a"])
    publisher.publish(state, 2 * PUBLISH_NS)
    assert list(published.runs) == ["a", "b", "c", "d"]
    publisher.publish(state, 2 * PUBLISH_NS, force=True)
    assert list(published.runs) == names
