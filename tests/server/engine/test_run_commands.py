"""A run that is deleted: gone from memory at once, from the store soon, and others stay."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.entries import Opened, Received
from gradwatch_server.engine.commands import CommandError
from gradwatch_server.engine.run_commands import DeleteRun
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_wire import Bye, Manifest, Stats
from tests.support.engine import Start
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def stats_in_log(running: Any, session: bytes) -> int:
    """Return how many statistics of a session the log has."""
    bodies = [entry.body for entry in running.entries() if isinstance(entry.body, Received)]
    return sum(
        isinstance(body.envelope.record, Stats) and body.envelope.session == session
        for body in bodies
    )


def test_all_of_a_deleted_run_goes_and_nothing_else(start: Start) -> None:
    """Records, curves and alert events; what another run has stays as it was."""
    running = start(retention=RetentionPolicy(checkpoint_s=0.1))
    kept = running.peer(run="kept").attach()
    kept.steps(0, 1.0, math.nan)
    gone = running.peer(run="gone").attach()
    gone.steps(0, *[1.0] * 80, math.nan)
    gone.send(Bye(reason="done"))
    gone.acked()
    # The newest alert event is of the one that goes: it goes once there is another.
    running.shows("gone", frames=81)
    engine = running.engine
    engine.commands.submit(DeleteRun("gone", engine.deletions)).result(10)

    wait_until(lambda: "gone" not in running.published.revisions)
    step = iter(range(2, 10_000))

    def is_gone() -> bool:
        kept.steps(next(step), 1.0)
        events = running.store.alert_events.after(0)
        return not stats_in_log(running, gone.session) and {event.run for event in events} == {
            "kept"
        }

    wait_until(is_gone)
    wait_until(lambda: [size.run for size in running.store.curves.sizes()] in (["kept"], []))
    heads = [entry.body for entry in running.entries() if isinstance(entry.body, Opened)]
    assert [head.hello.run for head in heads] == ["kept"]
    names = [
        entry.body.envelope.session
        for entry in running.entries()
        if isinstance(entry.body, Received) and isinstance(entry.body.envelope.record, Manifest)
    ]
    assert names == [kept.session]
    assert stats_in_log(running, kept.session) == next(step)
    assert engine.published.num_apply_errors == 0


def test_a_run_that_trains_stays(start: Start) -> None:
    running = start()
    running.peer(run="gpt").attach().steps(0, 1.0)

    with pytest.raises(CommandError, match="still trains") as refused:
        running.engine.commands.submit(DeleteRun("gpt", running.engine.deletions)).result(10)
    assert refused.value.status == 409


def test_a_deleted_name_that_comes_back_has_other_numbers(start: Start) -> None:
    """Of attempts and of entries, so that no id comes twice; over a restart, too."""
    running = start()
    gone = running.peer().attach()
    gone.steps(0, *[1.0] * 5)
    gone.send(Bye(reason="done"))
    gone.acked()
    running.shows(frames=5)
    last = running.store.log.last("gpt")
    running.engine.commands.submit(DeleteRun("gpt", running.engine.deletions)).result(10)
    wait_until(lambda: running.entries() == [])

    running = start(endpoint=running.endpoint)
    running.peer().attach().steps(0, 1.0, 1.0)
    assert running.shows(frames=2).attempt == 2
    assert running.store.log.last("gpt") > last + 3

    running = start(endpoint=running.endpoint)
    assert (running.view().attempt, running.view().frames, running.view().stored) == (2, 2, 3)
