"""A data directory that version 0.1 wrote is read as it was, with nothing lost.

The two archives were made by the last commit of version 0.1: one of a clean stop, one of a process
that was killed, whose newest records are only in the WAL and in no checkpoint.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.origin import FirstBad
from gradwatch_server.core.entries import Forgotten, Gap, Opened, Received
from gradwatch_server.core.state import State
from gradwatch_server.core.views.snapshot import RunView, view_run
from gradwatch_server.storage.checkpointer import Checkpointer
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.sqlite.store import SQLiteStore

GOLDEN = Path(__file__).parent / "golden"
WINDOW_STEPS = 64

ALERTS = [
    (1, "exploding", "firing", "4ec3720e4f2ae8ef"),
    (2, "exploding", "resolved", "4ec3720e4f2ae8ef"),
    (3, "nonfinite", "firing", "264b25f612c193fb"),
    (4, "nonfinite", "resolved", "264b25f612c193fb"),
    (5, "records_lost", "firing", "2dc0e84bc02d512a"),
    (6, "records_lost", "resolved", "2dc0e84bc02d512a"),
    (7, "exploding", "firing", "f15baf88b163fb29"),
]
"""Cursor, rule, state and id, as version 0.1 gave them out."""


class Found:
    """What this version finds in a data directory."""

    def __init__(self, directory: Path) -> None:
        clock = Clock()
        self.store = SQLiteStore.open(directory, clock)
        checkpointer = Checkpointer(self.store, RetentionPolicy(), clock)
        self.state = checkpointer.restore(WINDOW_STEPS)
        self.num_applied = 0
        for offset, entry, ahead in checkpointer.tail(self.state):
            checkpointer.note(entry, offset, self.state)
            self.state.apply(entry, ahead)
            self.num_applied += 1
        while checkpointer._windows.fill_due(self.state):
            pass

    def view(self, run: str) -> RunView:
        return view_run(self.state.runs[run])

    def alert_events(self) -> list[tuple[int, str, str, str]]:
        stored = self.store.alert_events.after(0)
        return [(e.cursor, e.alert["rule"], e.alert["state"], e.alert["id"]) for e in stored]


@pytest.fixture(params=["stopped", "killed"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(kind: str, tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / f"data_0.1_{kind}.tar.xz") as archive:
        archive.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data"


@pytest.fixture
def found(directory: Path) -> Iterator[Found]:
    found = Found(directory)
    yield found
    found.store.close()


def test_runs_are_as_they_were(found: Found, kind: str) -> None:
    """Their records, frames, marks and ranks; a killed process lost nothing either."""
    gpt, ended = found.view("gpt"), found.view("ended")
    num_frames = {"stopped": 20, "killed": 25}[kind]

    assert [*found.state.runs] == ["gpt", "ended"]
    assert found.state.budgets == LoggedBudgets.from_log({})  # which it did not keep to
    assert (gpt.attempt, gpt.names, gpt.lost) == (1, ("embed", "head"), 2)
    assert (gpt.stored, gpt.frames) == (2 * num_frames + 5, num_frames)
    assert gpt.series.steps.tolist() == list(range(num_frames))
    assert gpt.events == {"mark": 2}
    assert (gpt.gains is None) is (kind == "stopped")  # they waited for the other rank
    assert gpt.first_bad is not None
    assert (gpt.first_bad.step, gpt.first_bad.rank) == (12, 1)
    assert (ended.stored, ended.lost, ended.frames) == (5, 0, 3)
    assert (ended.ranks[0].state, ended.ranks[0].reason) == ("ended", "closed")


def test_alert_events_keep_their_cursors_and_ids(found: Found, kind: str) -> None:
    """A subscriber of the old version goes on where it was."""
    assert found.alert_events() == ALERTS[: {"stopped": 5, "killed": 7}[kind]]


def test_every_record_is_in_the_log(found: Found, kind: str) -> None:
    """With the bytes that came, so that it can be read anew."""
    entries = list(found.store.log.entries())
    bodies = [type(entry.body) for _, entry in entries]

    assert [offset for offset, _ in entries] == list(range(1, len(entries) + 1))
    assert bodies.count(Opened) == 3
    assert bodies.count(Gap) == 1
    assert bodies.count(Received) == sum(found.view(run).stored for run in ("gpt", "ended"))
    assert Forgotten not in bodies


def test_the_log_from_its_beginning_gives_the_same(found: Found) -> None:
    """The rules of this version decide as those of the old one did."""
    state = State(WINDOW_STEPS)
    alerts = [alert for _, entry in found.store.log.entries() for alert in state.apply(entry)]
    told = [(alert.rule, str(alert.state), alert.id) for alert in alerts]

    assert told == [event[1:] for event in found.alert_events()]
    for name in ("gpt", "ended"):
        again, view = view_run(state.runs[name]), found.view(name)
        assert again.series.total_norm.tobytes() == view.series.total_norm.tobytes()
        assert again.ranks == view.ranks
        assert _place(again.first_bad) == _place(view.first_bad)


def test_what_was_saved_is_not_read_again(found: Found, kind: str) -> None:
    """The checkpoint of the old version is used; only what came after it is applied."""
    assert found.num_applied == {"stopped": 0, "killed": 10}[kind]


def test_the_engine_goes_on_with_it(directory: Path, kind: str, start: Any, peers: Any) -> None:
    """A new rank is taken in, and its alert gets the next cursor."""
    running = start()  # in `tmp_path / "data"`
    assert running.path.parent == directory
    peer = peers(running.endpoint, run="new").attach()
    peer.steps(0, float("nan"))
    running.shows("new", frames=1)

    newest = running.events()[-1]
    assert newest[0] == {"stopped": 6, "killed": 8}[kind]
    assert set(running.published.runs) == {"gpt", "ended", "new"}


def _place(first_bad: FirstBad | None) -> object:
    """Return what the old version noted of it, too."""
    return first_bad and (first_bad.step, first_bad.rank, first_bad.layer, first_bad.kind)
