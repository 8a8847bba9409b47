"""Runs over HTTP: list, health, ranks, gains, groups, events."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from gradwatch_wire import Beat, Bye, Column, Event, Gains
from tests.support.aggregator import Aggregator, Serve
from tests.support.waiting import wait_until

NAN = math.nan


@pytest.mark.slow
def test_health_says_what_to_go_back_to(
    attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    """The step before a critical alert began; the usual time of a step; whose clock ages go by."""
    peer = attach()
    for step in range(10):
        peer.stats(step, (1.0 if step < 8 else NAN, 1.0), step_time_s=0.5)
    peer.acked()

    report = health(step=9)

    assert report["status"] == "critical"
    assert report["last_good_step"] == 7
    assert report["usual_step_time_s"] == 0.5
    assert report["revision"] >= 10
    assert report["now"] >= report["updated_at"]


@pytest.mark.slow
def test_a_warning_about_gradients_ends_the_good_steps_and_a_crash_does_not(
    attach: Callable[..., Any], health: Callable[..., Any]
) -> None:
    peer = attach()
    for step in range(45):
        peer.stats(step, (1.0 + step / 100 if step < 40 else 0.0, 1.0), loss=1.0)
    peer.acked()
    assert health(step=44, status="degraded")["last_good_step"] == 39
    for step in range(45, 50):
        peer.stats(step, (1.0 + step / 100, 1.0), loss=1.0)
    peer.send(Bye(reason="exception"))
    peer.acked()

    report = health(status="critical")

    assert [item["rule"] for item in report["alerts"]["items"]] == ["liveness"]
    assert report["last_good_step"] == 49


@pytest.mark.slow
def test_what_health_does_not_know_is_null(
    attach: Callable[..., Any], health: Callable[..., Any]
) -> None:
    peer = attach()
    report = health(status="unknown")
    assert (report["last_good_step"], report["usual_step_time_s"]) == (None, None)
    peer.steps(0, 1.0, 1.0)

    report = health(step=1)

    assert (report["last_good_step"], report["usual_step_time_s"]) == (1, None)


def test_a_run_is_shown_from_its_first_hello_on(
    service: Aggregator, run: str, health: Callable[..., Any]
) -> None:
    service.peer(run=run).greet()

    report = health(status="unknown")

    assert (report["step"], report["first_bad"], report["ranks"][0]["state"]) == (
        None,
        None,
        "alive",
    )


def test_health_of_a_run_with_an_inf(
    attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    peer = attach()
    peer.steps(0, 1.0, 1e-9, math.inf)  # one step of three that a layer has to vanish for
    report = health(step=2)

    assert (report["run"], report["status"], report["attempt"]) == (run, "critical", 1)
    assert report["gradient_norm"]["last"] == "Infinity"
    assert report["worst_layers"] == [{"name": "a", "why": "nonfinite", "l2": "Infinity"}]
    assert report["records"]["stored"] == 4
    assert report["records"]["lost"] == 0
    assert {k: report["alerts"][k] for k in ("firing", "pending")} == {"firing": 1, "pending": 1}
    assert [item["rule"] for item in report["alerts"]["items"]] == ["nonfinite", "vanishing"]
    assert report["first_bad"] == {
        "step": 2,
        "rank": 0,
        "layer": "a",
        "kind": "inf",
        "bad_loss": None,
        "first_gradient": "a",
        "module": None,
        "layers": ["a"],
        "num_layers": 1,
        "last_good_step": None,
        "batch": "",
        "place": "",
    }


@pytest.mark.slow
def test_all_runs_are_listed_the_last_active_one_first(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    attach().steps(0, NAN)
    health(step=0)
    first = service.json("/runs")[0]

    assert (first["run"], first["status"], first["step"], first["firing"]) == (
        run,
        "critical",
        0,
        1,
    )
    assert (first["ranks"], first["world"], first["attempt"]) == (1, 1, 1)
    assert first["records"]["stored"] == 2
    assert first["score"] == 0.0


@pytest.mark.slow
def test_a_run_shows_its_attempts_layers_and_events(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    """Layers in forward order with their sizes; one line per attempt."""
    attach().steps(0, 1.0)
    peer = service.peer(run=run).attach(["x", "y"])
    peer.steps(0, 1.0)
    health(attempt=2, step=0)
    shown = service.json(f"/runs/{run}")

    assert shown["run"] == run
    assert shown["layers"] == [{"name": "x", "numel": 10}, {"name": "y", "numel": 10}]
    assert [(a["attempt"], a["world"], a["frames"]) for a in shown["attempts"]] == [
        (1, 1, 1),
        (2, 1, 1),
    ]
    assert (shown["events"], shown["skipped_steps"]) == ({}, 0)
    assert shown["created_at"] <= shown["attempts"][0]["started_at"] <= shown["updated_at"]


@pytest.mark.slow
def test_gains_of_a_run_are_shown(
    service: Aggregator, attach: Callable[..., Any], run: str
) -> None:
    peer = attach()
    path = f"/runs/{run}/gains"
    empty = service.json(path)
    assert {key: empty[key] for key in ("run", "attempt", "step", "norm_type")} == {
        "run": run,
        "attempt": 1,
        "step": None,
        "norm_type": None,
    }
    assert (empty["blocks"], empty["transitions"], empty["ranks"]) == ([], [], [])
    assert set(empty["summary"]) >= {"mean_gain", "num_healthy", "num_missing"}

    norms = Column.pack("<f8", [6.0, 2.0, 0.0])
    peer.send(Gains(step=3, blocks=("x", "y", "z"), norm_type="l1", norms=norms))
    answer = wait_until(lambda: service.json(path)["step"] == 3 and service.json(path))

    assert (answer["norm_type"], answer["ranks"]) == ("l1", [0])
    assert [block["name"] for block in answer["blocks"]] == ["x", "y", "z"]
    assert answer["transitions"][1] == {
        "from": "y",
        "to": "z",
        "gain": "Infinity",
        "log_gain": "Infinity",
        "category": "vanishing",
    }
    assert answer["summary"]["num_amplifying"] == 1


@pytest.mark.slow
def test_groups_of_a_run_are_compared(
    service: Aggregator, health: Callable[..., Any], run: str
) -> None:
    groups = {"host": (0,), "seed": (1,)}
    peer = service.peer(run=run).attach(groups=groups)
    peer.steps(0, 4.0)
    report = health(step=0)
    answer = service.json(f"/runs/{run}/groups")

    assert report["groups"] == {"seed/host": 0.25}
    assert answer == {
        "run": run,
        "attempt": 1,
        "step": 0,
        "groups": [
            {"name": "host", "layers": 1, "numel": 10, "l2": 4.0},
            {"name": "seed", "layers": 1, "numel": 10, "l2": 1.0},
        ],
        "ratios": {"seed/host": 0.25, "host/seed": 4.0},
    }
    peer.steps(1, NAN)
    assert health(step=1)["groups"] == {"seed/host": "NaN"}


def test_shards_of_two_ranks_are_one_layer(
    service: Aggregator, health: Callable[..., Any], run: str
) -> None:
    ranks = [
        service.peer(run=run, rank=rank, world=2).attach(["w"], shards=(f"Shard(0) {rank}/2",))
        for rank in (0, 1)
    ]
    for peer, norm in zip(ranks, (300.0, 400.0), strict=True):
        peer.stats(0, (norm,))
        peer.acked()
    report = health(step=0)

    assert report["worst_layers"] == [{"name": "w", "why": "exploding", "l2": 500.0}]
    assert report["gradient_norm"]["last"] == 500.0


def test_skipped_steps_are_counted(
    service: Aggregator, attach: Callable[..., Any], run: str
) -> None:
    peer = attach()
    for step in (4, 4, 9):
        data = {"loss_scale": 1024.0, "optimizer": 0}
        peer.send(Event(name="skipped_step", step=step, data=data))
    peer.acked()

    shown = wait_until(
        lambda: service.json(f"/runs/{run}")["skipped_steps"] and service.json(f"/runs/{run}")
    )
    assert (shown["skipped_steps"], shown["events"]) == (2, {"skipped_step": 3})


def test_names_from_the_wire_come_back_as_they_were(
    service: Aggregator, health: Callable[..., Any], run: str
) -> None:
    """Layer names may be any text: markup, quotes, line ends, other scripts."""
    names = ["<script>alert(1)</script>", 'a"b\\c\n\r', "слой\u2028é", "\x00\x1b[31m"]
    peer = service.peer(run=run).attach(names)
    peer.stats(0, [NAN] * 4)
    peer.acked()
    report = health(step=0)

    assert [layer["name"] for layer in service.json(f"/runs/{run}")["layers"]] == names
    assert report["first_bad"]["first_gradient"] == names[3]
    assert report["alerts"]["items"][0]["layers"] == [names[3], *names[:3]]
    message = report["alerts"]["items"][0]["message"]
    assert message.isprintable()


def test_answers_are_strict_json(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any]
) -> None:
    peer = attach()
    peer.stats(0, (NAN, math.inf), loss=-math.inf, local_probe=NAN)
    peer.acked()
    report = health(step=0)
    text = service.get(f"/runs/{report['run']}/health").text

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    json.loads(text, parse_constant=refuse)
    assert report["loss"] == "-Infinity"
    assert report["worst_layers"][0]["l2"] == "Infinity"
    assert report["worst_layers"][1]["l2"] == "NaN"


@pytest.mark.slow
def test_silence_shows_within_seconds_and_beats_count_as_life(
    attach: Callable[..., Any], health: Callable[..., Any], service: Aggregator, run: str
) -> None:
    """last_seen_s goes up, and a beat begins it anew."""
    peer = attach()
    peer.steps(0, 1.0)
    health(step=0)

    def last_seen_s() -> float:
        seconds: float = service.json(f"/runs/{run}/health")["ranks"][0]["last_seen_s"]
        return seconds

    wait_until(lambda: last_seen_s() >= 0.5, "half a second of silence")
    began = time.monotonic()
    peer.say(Beat())
    since_beat_s = last_seen_s()

    assert since_beat_s <= time.monotonic() - began + 0.001  # it is rounded to milliseconds


def test_everything_is_there_after_a_kill(serve: Serve) -> None:
    """SIGKILL: the next process shows the same run, and the stream goes on by the same cursors."""
    service = serve()
    peer = service.peer(world=2).attach()
    peer.steps(0, 1.0)
    peer.send(Bye())
    peer.acked()
    wait_until(lambda: service.json("/runs/gpt/health")["ranks"][0]["state"] == "ended")
    other = service.peer(rank=1, world=2).attach()
    other.bad_steps(1, 1)
    wait_until(lambda: service.newest_event() == 2)
    service.shows(other)
    before = service.json("/runs/gpt/health")
    events = service.json("/alerts")
    service.stop(signal.SIGKILL)
    service.start()
    after = service.json("/runs/gpt/health")

    assert service.json("/alerts") == events
    for report in (before, after):
        del report["now"], report["revision"]
        for rank in report["ranks"]:
            del rank["last_seen_s"]
    assert after == before
    other.greet()
    other.bad_steps(5, 1)
    wait_until(lambda: service.newest_event() == 4)  # it is acknowledged before it is applied
    assert [e["cursor"] for e in service.json("/alerts")] == [1, 2, 3, 4]
