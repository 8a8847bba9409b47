"""What readers see: whole snapshots, made no more often than they can tell, of what there is."""

from __future__ import annotations

import pytest

from gradwatch_server.core.entries import Entry, Opened
from gradwatch_server.core.state import State
from gradwatch_server.engine.published import PUBLISH_NS, PublishedState, Publisher
from gradwatch_wire import Hello


@pytest.fixture
def state() -> State:
    state = State()
    for number, run in enumerate(("one", "two")):
        hello = Hello(run=run, rank=0, world=1)
        state.apply(Entry(number, Opened(number.to_bytes(16, "big"), hello)))
    return state


def test_only_runs_that_changed_get_new_snapshots(state: State) -> None:
    """Those of the others stay, and so does a mapping that a reader took."""
    published = PublishedState()
    publisher = Publisher(published)
    publisher.note_changed(["one", "two"])
    publisher.publish(state, PUBLISH_NS)
    before = published.runs
    publisher.note_changed(["two"])
    publisher.publish(state, 2 * PUBLISH_NS)

    assert published.runs is not before
    assert published.runs["one"] is before["one"]
    assert published.runs["two"] is not before["two"]


def test_snapshots_are_made_at_most_so_often(state: State) -> None:
    """What changed meanwhile comes with the next ones, or at once where it is asked for."""
    published = PublishedState()
    publisher = Publisher(published)
    publisher.note_changed(["one"])
    publisher.publish(state, PUBLISH_NS)
    publisher.note_changed(["two"])
    publisher.publish(state, 2 * PUBLISH_NS - 1)
    assert set(published.runs) == {"one"}

    publisher.publish(state, 2 * PUBLISH_NS - 1, force=True)
    assert set(published.runs) == {"one", "two"}


def test_a_run_that_left_memory_is_taken_back_at_once(state: State) -> None:
    """Also one that changed just before: there is nothing left to make a snapshot of."""
    published = PublishedState()
    publisher = Publisher(published)
    publisher.note_changed(["one", "two"])
    publisher.publish(state, PUBLISH_NS)
    publisher.note_changed(["one"])
    publisher.remove("one")
    del state.runs["one"]
    publisher.publish(state, 2 * PUBLISH_NS)

    assert set(published.runs) == {"two"}
