"""A training run as a person sees it: real workers, a real aggregator, questions over HTTP."""

from __future__ import annotations

import os
import signal
from typing import Any

import httpx
import httpx_sse
import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "layers", "kind", "bad_loss"),
    [
        # All are bad; named are the first five of them.
        ("batch", ["0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias"], "nan", True),
        ("local-weight", ["2.weight"], "nan", False),
        ("after-reduction", ["3.bias"], "inf", False),
    ],
)
def test_a_nonfinite_gradient_of_one_ddp_rank_is_named_by_step_rank_and_layer(
    aggregator: Aggregator, train: Train, fault: str, layers: list[str], kind: str, bad_loss: bool
) -> None:
    """An all-reduce spreads a NaN to both ranks; the local loss or the local probe tells whose.

    A batch makes the loss NaN: then no layer is to blame.
    """
    aggregator.start()
    train(2, "--run", "ddp", "--fault", fault, "--fault-rank", "1").wait()

    health = aggregator.health_of_ended("ddp")
    alerts = aggregator.json("/runs/ddp/alerts")

    assert health["first_bad"] == {
        "step": 20,
        "rank": 1,
        "layer": None if bad_loss else layers[-1],
        "layers": layers[:5],
        "num_layers": len(layers),
        "last_good_step": 19,
        "batch": "",
        "place": "",
        "kind": kind,
        "bad_loss": bad_loss,
        "first_gradient": layers[-1],
        "module": None,
    }
    assert health["window"]["coverage"] == 1.0
    assert [alert["rule"] for alert in alerts] == ["nonfinite"]
    assert alerts[0]["origin"]["rank"] == 1
    assert alerts[0]["first_step"] == alerts[0]["fired_step"] == 20


@pytest.mark.parametrize(
    ("fault", "rule", "beside", "status", "severity"),
    [
        ("explode", "exploding", {"loss"}, "critical", "critical"),
        ("vanish", "vanishing", set(), "critical", "critical"),
    ],
)
def test_gradients_out_of_range_on_all_ranks_fire_and_stay_firing_to_the_end(
    aggregator: Aggregator,
    train: Train,
    fault: str,
    rule: str,
    beside: set[str],
    status: str,
    severity: str,
) -> None:
    """A run that ended keeps its alerts as they stood. The loss explodes with its gradients."""
    aggregator.start()
    train(2, "--run", "range", "--fault", fault).wait()

    health = aggregator.health_of_ended("range")

    assert health["phase"] == "ended"
    assert health["status"] == status
    alerts = {alert["rule"]: alert for alert in health["alerts"]["items"]}
    assert alerts.keys() == {rule} | beside
    assert {alert["state"] for alert in alerts.values()} == {"firing"}
    alert = alerts[rule]
    assert (alert["severity"], alert["first_step"]) == (severity, 20)
    assert alert["origin"]["ranks"] == [0, 1]
    assert alert["origin"]["rank"] is None
    assert health[f"has_{rule}"]
    assert health["score"]["min"] < 1.0


def test_gains_groups_and_local_norms_reach_their_pages(
    aggregator: Aggregator, train: Train
) -> None:
    """From hooks in the training processes to `/gains`, `/groups` and the origin of an alert."""
    aggregator.start()
    train(2, "--run", "more", "--more", "--fault", "local-weight", "--fault-rank", "1").wait()

    health = aggregator.health_of_ended("more")
    gains = aggregator.json("/runs/more/gains")
    groups = aggregator.json("/runs/more/groups")

    assert gains["step"] == groups["step"] == 39
    assert [block["name"] for block in gains["blocks"]] == ["0", "1", "2", "3"]
    assert gains["ranks"] == [0, 1]
    assert all(transition["gain"] > 0.0 for transition in gains["transitions"])
    assert sum(n for key, n in gains["summary"].items() if key.startswith("num_")) == 3
    assert {group["name"]: group["numel"] for group in groups["groups"]} == {
        "host": 32 * 64 + 64 + 64 * 64 + 64,
        "seed": 64 * 10 + 10,
    }
    assert health["groups"]["seed/host"] == groups["ratios"]["seed/host"] > 0.0
    first_bad = health["first_bad"]
    assert (first_bad["step"], first_bad["rank"], first_bad["layer"]) == (20, 1, "2.weight")


def test_a_healthy_run_raises_nothing(aggregator: Aggregator, train: Train) -> None:
    aggregator.start()
    train(2, "--run", "fine").wait()

    health = aggregator.health_of_ended("fine")

    assert health["alerts"]["items"] == []
    assert health["first_bad"] is None
    assert health["score"] == {"last": 1.0, "mean": 1.0, "min": 1.0}
    # Per rank: a manifest, 40 steps, a BYE.
    assert health["records"] == {"stored": 2 * 42, "lost": 0, "late": 0, "unresolved": 0}
    assert [rank["state"] for rank in health["ranks"]] == ["ended", "ended"]
    assert health["layers"]["total"] == 6


@pytest.mark.exhaustive
def test_nothing_is_lost_over_kills_of_the_aggregator(aggregator: Aggregator, train: Train) -> None:
    """Ten of them: acknowledged means committed, and what was not is sent again."""
    aggregator.start()
    job = train(
        *(2, "--run", "kills", "--steps", "800", "--pause-s", "0.03"),
        *("--fault", "batch", "--fault-step", "750"),
    )
    for step in range(40, 700, 66):
        aggregator.reaches("kills", step)
        aggregator.stop(signal.SIGKILL)
        aggregator.start()
    job.wait()

    health = aggregator.health_of_ended("kills")

    # A step whose first record came before a kill may be closed before its second is sent again.
    records = health["records"]
    assert (records["stored"], records["lost"], records["unresolved"]) == (2 * 802, 0, 0)
    assert health["step"] == 799
    assert health["attempt"] == 1
    events = aggregator.json("/alerts")
    assert [(e["cursor"], e["state"]) for e in events] == [(1, "firing"), (2, "resolved")]


def test_a_restarted_aggregator_is_as_it_was(aggregator: Aggregator, train: Train) -> None:
    """Windows, alerts, cursors and ids are a function of the log."""
    aggregator.start()
    train(2, "--run", "again", "--fault", "explode").wait()
    before = aggregator.health_of_ended("again"), aggregator.json("/alerts")
    aggregator.stop(signal.SIGKILL)
    aggregator.start()

    after = aggregator.health("again"), aggregator.json("/alerts")

    for health in (before[0], after[0]):
        del health["now"], health["revision"]
        for rank in health["ranks"]:
            del rank["last_seen_s"]
    assert after == before


def test_training_goes_on_without_an_aggregator_and_ends(train: Train) -> None:
    (output,) = train(1, "--run", "alone").wait()

    assert "collected=40\n" in output


def test_an_aggregator_that_comes_late_gets_everything(
    aggregator: Aggregator, train: Train
) -> None:
    """Records wait in the worker's buffer until someone takes them."""
    job = train(1, "--run", "late", "--steps", "150", "--hold-at", "40")
    job.wait_for_training()
    assert job.line() == "holding"
    aggregator.start()
    job.release()
    job.wait()

    health = aggregator.health_of_ended("late")

    assert health["records"] == {"stored": 152, "lost": 0, "late": 0, "unresolved": 0}


@pytest.mark.exhaustive
def test_a_stopped_aggregator_neither_stops_training_nor_loses_records(
    aggregator: Aggregator, train: Train
) -> None:
    """SIGSTOP until 1500 steps are taken: connections stay open, nothing answers."""
    aggregator.start()
    job = train(1, "--run", "stopped", "--steps", "1600", "--hold-at", "1500")
    aggregator.reaches("stopped", 20)
    aggregator.send(signal.SIGSTOP)
    job.wait_for_training()
    assert job.line() == "holding"
    aggregator.send(signal.SIGCONT)
    job.release()
    job.wait()
    records = aggregator.health_of_ended("stopped")["records"]

    assert (records["stored"], records["lost"]) == (1602, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("environ", [{"GRADWATCH_SESSION_TIMEOUT_S": "1"}])
def test_a_killed_worker_shows_as_lost_and_the_run_as_critical(
    aggregator: Aggregator, train: Train
) -> None:
    aggregator.start()
    job = train(1, "--run", "killed", "--kill-at", "20")
    job.ranks[0].wait(PATIENCE_S)
    wait_until(lambda: _state(aggregator, "killed") == "lost", "the rank is lost")

    health = aggregator.health("killed")
    assert (health["phase"], health["status"]) == ("lost", "critical")
    assert [alert["rule"] for alert in health["alerts"]["items"]] == ["liveness"]


@pytest.mark.exhaustive
def test_a_relaunched_run_is_a_new_attempt(aggregator: Aggregator, train: Train) -> None:
    aggregator.start()
    for _ in range(2):
        train(2, "--run", "twice", "--steps", "10").wait()

    aggregator.health_of_ended("twice")
    run = aggregator.json("/runs/twice")

    assert run["attempt"] == 2
    assert [attempt["frames"] for attempt in run["attempts"]] == [10, 10]
    assert run["records"]["stored"] == 2 * 2 * 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_aggregator_stops_with_a_stream_open(aggregator: Aggregator, number: int) -> None:
    """An open stream is ended, not waited for."""
    aggregator.start()
    url = f"{aggregator.url}/alerts/stream"
    with httpx.Client() as client, httpx_sse.connect_sse(client, "GET", url) as source:
        events = source.iter_sse()
        assert aggregator.stop(number) == 0
        assert list(events) == []

    assert "Traceback" not in aggregator.errors


def test_the_stream_resumes_with_nothing_missed_or_doubled(
    aggregator: Aggregator, train: Train
) -> None:
    """`Last-Event-ID` is a cursor into what is stored, across a restart."""
    aggregator.start()
    train(1, "--run", "resume", "--fault", "batch").wait()
    first = _events(aggregator, after=0, most=1)
    aggregator.stop(signal.SIGKILL)
    aggregator.start()
    rest = _events(aggregator, after=first[-1]["cursor"], most=1)

    assert [event["cursor"] for event in first + rest] == [1, 2]
    assert [event["state"] for event in first + rest] == ["firing", "resolved"]


def test_gradwatch_can_be_switched_off(
    aggregator: Aggregator, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`GRADWATCH_DISABLED=1` leaves a training script as it is and sends nothing."""
    aggregator.start()
    monkeypatch.setitem(os.environ, "GRADWATCH_DISABLED", "1")
    train(1, "--run", "off", "--steps", "5").wait()

    assert aggregator.json("/runs") == []


def _state(aggregator: Aggregator, run: str) -> str:
    state: str = aggregator.health(run)["ranks"][0]["state"]
    return state


def _events(aggregator: Aggregator, after: int, most: int) -> list[dict[str, Any]]:
    url = f"{aggregator.url}/alerts/stream"
    headers = {"Last-Event-ID": str(after)}
    with (
        httpx.Client(timeout=PATIENCE_S) as client,
        httpx_sse.connect_sse(client, "GET", url, headers=headers) as source,
    ):
        events = []
        for message in source.iter_sse():
            events.append(message.json())
            if len(events) == most:
                break
        return events


def test_a_sentinel_finds_step_and_rank_among_steps_that_are_not_measured(
    aggregator: Aggregator, train: Train
) -> None:
    """A budget of nothing: after the first 32 steps none is due, and ranks look at each."""
    aggregator.start()
    arguments = ["--fault", "batch", "--fault-rank", "1", "--fault-step", "120"]
    arguments += ["--steps", "200", "--pause-s", "0.001", "--overhead", "1e-6"]
    train(2, "--run", "ddp", *arguments).wait()

    health = aggregator.health_of_ended("ddp")

    first_bad = health["first_bad"]
    assert (first_bad["step"], first_bad["rank"], first_bad["bad_loss"]) == (120, 1, True)
    assert first_bad["last_good_step"] == 119
    assert health["last_good_step"] == 119
    assert health["window"]["coverage"] == 1.0
    assert health["window"]["steps"] == 33
    assert health["pace"].startswith("every 512th step in full, a sentinel on each: about ")
    series = aggregator.json("/runs/ddp/series?column=loss&column=norm&points=1000")
    loss, norm = series["series"]
    assert loss["n"] == [1] * 121
    assert loss["nan"] == [0] * 120 + [1]
    assert norm["n"] == [1] * 32 + [0] * 88 + [1]
