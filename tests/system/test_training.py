"""What a person sees of a training run: real workers, a real aggregator, questions over HTTP."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import httpx
import httpx_sse
import pytest


@pytest.mark.parametrize(
    ("fault", "layer", "kind"),
    [
        ("batch", "3.bias", "nan"),
        ("local-weight", "2.weight", "nan"),
        ("after-reduction", "3.bias", "inf"),
    ],
)
def test_a_nonfinite_gradient_of_one_ddp_rank_is_named_by_step_rank_and_layer(
    aggregator: Any, train: Any, fault: str, layer: str, kind: str
) -> None:
    """An all-reduce spreads a NaN to both ranks; the local loss or the local probe tells whose."""
    aggregator.start()
    train(2, "--run", "ddp", "--fault", fault, "--fault-rank", "1").wait()

    health = aggregator.health("ddp")
    alerts = aggregator.get("/runs/ddp/alerts").json()

    assert health["first_bad"] == {"step": 20, "rank": 1, "layer": layer, "kind": kind}
    assert health["window"]["coverage"] == 1.0
    assert [alert["rule"] for alert in alerts] == ["nonfinite"]
    assert alerts[0]["origin"]["rank"] == 1
    assert alerts[0]["first_step"] == alerts[0]["fired_step"] == 20


@pytest.mark.parametrize(("fault", "rule"), [("explode", "exploding"), ("vanish", "vanishing")])
def test_gradients_out_of_range_on_all_ranks_fire_and_stay_firing_to_the_end(
    aggregator: Any, train: Any, fault: str, rule: str
) -> None:
    """A run that ended keeps its alerts as they stood."""
    aggregator.start()
    train(2, "--run", "range", "--fault", fault).wait()

    health = aggregator.health("range")

    assert health["status"] == "ended"
    (alert,) = health["alerts"]["items"]
    assert (alert["rule"], alert["state"], alert["first_step"]) == (rule, "firing", 20)
    assert alert["origin"]["ranks"] == [0, 1]
    assert alert["origin"]["rank"] is None
    assert health[f"has_{rule}"]
    assert health["score"]["min"] < 1.0


def test_gains_groups_and_local_norms_reach_their_pages(aggregator: Any, train: Any) -> None:
    """From hooks in the training processes to `/gains`, `/groups` and the origin of an alert."""
    aggregator.start()
    train(2, "--run", "more", "--more", "--fault", "local-weight", "--fault-rank", "1").wait()

    gains = aggregator.get("/runs/more/gains").json()
    groups = aggregator.get("/runs/more/groups").json()
    health = aggregator.health("more")

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
    assert health["first_bad"] == {"step": 20, "rank": 1, "layer": "2.weight", "kind": "nan"}


def test_a_healthy_run_raises_nothing(aggregator: Any, train: Any) -> None:
    """No news is good news, and complete."""
    aggregator.start()
    train(2, "--run", "fine").wait()

    health = aggregator.health("fine")

    assert health["alerts"]["items"] == []
    assert health["first_bad"] is None
    assert health["score"] == {"last": 1.0, "mean": 1.0, "min": 1.0}
    # Per rank: a manifest, 40 steps, a goodbye.
    assert health["records"] == {"stored": 2 * 42, "lost": 0, "late": 0, "unresolved": 0}
    assert [rank["state"] for rank in health["ranks"]] == ["ended", "ended"]
    assert health["layers"]["total"] == 6


def test_nothing_is_lost_over_kills_of_the_aggregator(
    aggregator: Any, train: Any, wait_until: Any
) -> None:
    """Ten of them: acknowledged means committed, and what was not is sent again."""
    aggregator.start()
    job = train(
        *(2, "--run", "kills", "--steps", "800", "--pause-s", "0.03"),
        *("--fault", "batch", "--fault-step", "750"),
    )
    for step in range(40, 700, 66):
        wait_until(lambda step=step: _step(aggregator, "kills") >= step, f"step {step}")
        aggregator.stop(signal.SIGKILL)
        aggregator.start()
    job.wait()

    health = aggregator.health("kills")

    assert health["records"] == {"stored": 2 * 802, "lost": 0, "late": 0, "unresolved": 0}
    assert health["step"] == 799
    assert health["attempt"] == 1
    events = aggregator.get("/alerts").json()
    assert [(e["cursor"], e["state"]) for e in events] == [(1, "firing"), (2, "resolved")]


def test_a_restarted_aggregator_is_as_it_was(aggregator: Any, train: Any) -> None:
    """Windows, alerts, cursors and ids are a function of the log."""
    aggregator.start()
    train(2, "--run", "again", "--fault", "explode").wait()
    before = aggregator.health("again"), aggregator.get("/alerts").json()
    aggregator.stop(signal.SIGKILL)
    aggregator.start()

    after = aggregator.health("again"), aggregator.get("/alerts").json()

    for health in (before[0], after[0]):
        for rank in health["ranks"]:
            del rank["last_seen_s"]
    assert after == before


def test_training_goes_on_without_an_aggregator_and_ends_in_time(train: Any) -> None:
    """Nothing answers at the endpoint: every step is taken, and closing takes 2 s at most."""
    (output,) = train(1, "--run", "alone").wait()

    match = re.search(r"collected=40 closed_s=([\d.]+)", output)
    assert match
    assert float(match[1]) < 2.5


def test_an_aggregator_that_comes_late_gets_everything(aggregator: Any, train: Any) -> None:
    """Records wait in the worker's ring until someone takes them."""
    job = train(1, "--run", "late", "--steps", "150")
    job.wait_for_training()
    time.sleep(0.5)
    aggregator.start()
    job.wait()

    health = aggregator.health("late")

    assert health["records"] == {"stored": 152, "lost": 0, "late": 0, "unresolved": 0}


def test_a_stopped_aggregator_neither_stops_training_nor_loses_records(
    aggregator: Any, train: Any, wait_until: Any
) -> None:
    """SIGSTOP for 30 s: connections stay open, nothing answers."""
    aggregator.start()
    job = train(1, "--run", "stopped", "--steps", "1600", "--pause-s", "0.02")
    wait_until(lambda: _step(aggregator, "stopped") >= 20, "step 20")
    aggregator.send(signal.SIGSTOP)
    time.sleep(30)
    assert job.ranks[0].poll() is None
    aggregator.send(signal.SIGCONT)
    job.wait()

    assert aggregator.health("stopped")["records"]["stored"] == 1602
    assert aggregator.health("stopped")["records"]["lost"] == 0


def test_a_full_ring_loses_the_oldest_and_the_loss_is_stated(aggregator: Any, train: Any) -> None:
    """produced = stored + lost, to the record, and lost records are no healthy run."""
    job = train(1, "--run", "small", "--steps", "900", "--buffer-bytes", "65536")
    job.wait_for_training()
    time.sleep(5.0)
    aggregator.start()
    job.wait()

    health = aggregator.health("small")

    records = health["records"]
    assert records["lost"] > 0
    assert records["stored"] + records["lost"] == 902
    assert records["unresolved"] == 0
    assert health["step"] == 899


@pytest.mark.parametrize("environ", [{"GRADWATCH_SESSION_TIMEOUT_S": "1"}])
def test_a_killed_worker_shows_as_lost_and_the_run_as_incomplete(
    aggregator: Any, train: Any, wait_until: Any
) -> None:
    """It said no goodbye; the aggregator gives up on it after the session timeout."""
    aggregator.start()
    job = train(1, "--run", "killed", "--kill-at", "20")
    job.ranks[0].wait(60)
    wait_until(lambda: _state(aggregator, "killed") == "lost", "the rank is lost")

    assert aggregator.health("killed")["status"] == "incomplete"


def test_a_relaunched_run_is_a_new_attempt(aggregator: Any, train: Any) -> None:
    """The same name again: steps begin at 0 anew, and what was counted stays counted."""
    aggregator.start()
    for _ in range(2):
        train(2, "--run", "twice", "--steps", "10").wait()

    run = aggregator.get("/runs/twice").json()

    assert run["attempt"] == 2
    assert [attempt["frames"] for attempt in run["attempts"]] == [10, 10]
    assert run["records"]["stored"] == 2 * 2 * 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_aggregator_stops_in_time_with_a_stream_open(aggregator: Any, number: int) -> None:
    """An open stream is ended, not waited for."""
    aggregator.start()
    url = f"{aggregator.url}/alerts/stream"
    with httpx.Client() as client, httpx_sse.connect_sse(client, "GET", url) as source:
        events = source.iter_sse()
        began = time.monotonic()
        code = aggregator.stop(number)
        took_s = time.monotonic() - began
        assert list(events) == []

    assert code == 0
    assert took_s < 3.0
    assert "Traceback" not in aggregator.errors


def test_the_stream_resumes_with_nothing_missed_or_doubled(aggregator: Any, train: Any) -> None:
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
    aggregator: Any, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`GRADWATCH_DISABLED=1` leaves a training script as it is and sends nothing."""
    aggregator.start()
    monkeypatch.setitem(os.environ, "GRADWATCH_DISABLED", "1")
    train(1, "--run", "off", "--steps", "5").wait()

    assert aggregator.get("/runs").json() == []


def _step(aggregator: Any, run: str) -> int:
    response = aggregator.get(f"/runs/{run}/health")
    return -1 if response.status_code == 404 else response.json()["step"] or -1


def _state(aggregator: Any, run: str) -> str:
    state: str = aggregator.health(run)["ranks"][0]["state"]
    return state


def _events(aggregator: Any, after: int, most: int) -> list[dict[str, Any]]:
    url = f"{aggregator.url}/alerts/stream"
    headers = {"Last-Event-ID": str(after)}
    with (
        httpx.Client(timeout=10) as client,
        httpx_sse.connect_sse(client, "GET", url, headers=headers) as source,
    ):
        events = []
        for message in source.iter_sse():
            events.append(message.json())
            if len(events) == most:
                break
        return events
