"""Entries of the engine about signs of life, and of its own absence."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Beats, Resumed
from gradwatch_server.engine import housekeeping
from gradwatch_wire import Beat, Bye
from gradwatch_wire.health import RankState
from tests.support.engine import RunningEngine, Start, attached
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NAN = float("nan")


class ShiftedClock(Clock):
    """The aggregator's clock, and time that a test lets pass at once."""

    def __init__(self) -> None:
        self._shift_ns = 0
        super().__init__(steady_ns=lambda: time.monotonic_ns() + self._shift_ns)

    def advance(self, seconds: float) -> None:
        self._shift_ns += round(seconds * 1e9)


def bodies(running: RunningEngine, kind: type) -> list[Any]:
    return [entry.body for entry in running.entries() if isinstance(entry.body, kind)]


def takes_a_round(running: RunningEngine) -> None:
    """Return once the engine has done all that was due when this began."""
    for _ in range(2):
        running.peer(run=f"round-{time.monotonic_ns()}").attach()


def test_what_beats_say_gets_into_the_log_for_all_sessions_together(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "SIGN_EVERY_S", 0.0)
    monkeypatch.setattr(housekeeping, "TICK_NS", 50_000_000)
    running = start()
    ranks = [running.peer(rank=rank, world=2).attach() for rank in range(2)]
    for step in range(7):
        for peer in ranks:
            peer.steps(step, 1.0)
    for peer in ranks:
        peer.say(Beat(last_step=6, since_s=400.0, training=True))
    (alert,) = wait_until(lambda: running.view().alerts)

    said = [own for body in bodies(running, Beats) for own in body.progress]
    assert {(own.last_step, own.since_s, own.training) for own in said} == {(6, 400.0, True)}
    assert (alert.rule, str(alert.severity)) == ("liveness", "warning")


def test_an_old_beat_is_no_sign_of_life(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that says it lives and is stopped then did not live when that came into the log."""
    monkeypatch.setattr(housekeeping, "SIGN_EVERY_S", 1.0)
    monkeypatch.setattr(housekeeping, "FRESH_NS", 300_000_000)
    monkeypatch.setattr(housekeeping, "TICK_NS", 50_000_000)
    clock = ShiftedClock()
    running, peer = attached(start(clock=clock))
    peer.steps(0, 1.0)
    peer.say(Beat(last_step=0))
    clock.advance(1.5)
    takes_a_round(running)
    assert bodies(running, Beats) == []

    peer.say(Beat(last_step=0, since_s=1.5))
    (body,) = wait_until(lambda: bodies(running, Beats))
    assert [own.since_s for own in body.progress] == [1.5]


def test_beats_of_a_run_that_steps_are_not_logged(start: Start) -> None:
    clock = ShiftedClock()
    running, peer = attached(start(clock=clock))
    for step in range(12):
        peer.steps(step, 1.0)
        peer.say(Beat(last_step=step))
        clock.advance(0.1)

    assert bodies(running, Beats) == []


def test_a_start_is_noted_if_anybody_lives(start: Start) -> None:
    """A frame waits again for all ranks that it waited for before (S4)."""
    running = start()
    assert bodies(running, Resumed) == []
    one = running.peer(rank=0, world=2).attach()
    two = running.peer(rank=1, world=2).attach()
    one.steps(0, 1.0)
    running.shows(stored=3)
    running.engine.stop()
    clock = ShiftedClock()
    clock.advance(5.5)  # longer than a frame waits
    running = start(endpoint=running.endpoint, clock=clock)
    takes_a_round(running)
    two.greet()
    two.steps(0, NAN)
    view = running.shows(frames=1)

    assert len(bodies(running, Resumed)) == 1
    assert (view.late, view.first_bad.step) == (0, 0)
    assert [alert.rule for alert in view.alerts] == ["nonfinite"]


@pytest.mark.parametrize("ends", [False, True], ids=["lost", "ended"])
def test_a_start_is_noted_if_a_lost_rank_may_return(start: Start, ends: bool) -> None:
    running, peer = attached(start(session_timeout_s=0.5))
    if ends:
        peer.send(Bye())
        peer.acked()
    right = RankState.ENDED if ends else RankState.LOST
    wait_until(lambda: running.shows().ranks[0].state is right, f"its rank {right}")
    running = start()
    running.peer(run="after").attach()  # by then a round is over

    assert len(bodies(running, Resumed)) == (not ends)


def test_an_engine_that_was_held_up_notes_it_before_what_had_come(start: Start) -> None:
    """Held up for longer than the session timeout it takes nobody for lost."""
    clock = ShiftedClock()
    running = start(session_timeout_s=30.0, clock=clock)
    one = running.peer(rank=0, world=2).attach()
    running.peer(rank=1, world=2).attach()
    one.steps(0, 1.0)
    running.shows(stored=3)
    clock.advance(60.0)
    takes_a_round(running)
    one.steps(1, 1.0)
    view = running.shows(stored=4)

    assert len(bodies(running, Resumed)) == 1
    assert (view.frames, view.alerts) == (0, ())  # they wait for the other rank anew
