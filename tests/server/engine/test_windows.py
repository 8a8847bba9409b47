"""Windows of runs that ended leave memory, and come back for who goes on, over real sockets."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.storage import window_memory
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_wire import Bye
from tests.support.engine import Start
from tests.support.peer import NewPeer
from tests.support.waiting import wait_until

FRAMES = 40


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_memory, "ENDED_NS", 0)
    monkeypatch.setattr(window_memory, "LOOK_NS", 0)


@pytest.mark.slow
def test_a_run_that_ended_keeps_no_frames_in_memory(start: Start, peers: NewPeer) -> None:
    """Those of one that lives stay (S26)."""
    running = start(retention=RetentionPolicy(checkpoint_s=0.05))
    trains, ended = (peers(running.endpoint, run=run).attach() for run in ("trains", "ended"))
    for peer in (trains, ended):
        for step in range(FRAMES):
            peer.steps(step, 1.0)
    ended.send(Bye())
    ended.acked()
    runs = running.engine._state.runs
    wait_until(lambda: not runs["ended"].current.window.num_bytes, "frames that left memory")

    own = runs["trains"].current.window.num_bytes
    use = running.engine.budget_use["window_bytes"]
    assert wait_until(lambda: use.used == own, "what is used")
    assert own > 0
    assert use.num_evicted == 0
    wait_until(lambda: len(running.view("ended").series.steps) == FRAMES, "frames that are shown")


@pytest.mark.slow
def test_a_lost_rank_that_goes_on_has_its_frames(start: Start, peers: NewPeer) -> None:
    running = start(retention=RetentionPolicy(checkpoint_s=0.05), session_timeout_s=1.0)
    peer = peers(running.endpoint, run="gpt").attach()
    for step in range(FRAMES):
        peer.steps(step, float(step + 1))
    window = running.engine._state.runs["gpt"].current.window
    wait_until(lambda: not window.num_bytes, "frames that left memory")
    peer.steps(FRAMES, math.nan)

    def told() -> list[Any]:
        alerts = [event.alert for event in running.store.alert_events.after(0)]
        return [alert for alert in alerts if alert["rule"] == "nonfinite"]

    wait_until(told, "an alert")
    assert [own["l2"] for own in told()[0]["origin"]["before"]] == [36.0, 37.0, 38.0, 39.0, 40.0]
    wait_until(lambda: not window.absent(), "frames that came back")
