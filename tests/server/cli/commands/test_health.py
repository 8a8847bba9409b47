"""`gradwatch health`, and its exit codes."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

from gradwatch_wire import Bye, Column, Event, Stats
from tests.support.aggregator import Aggregator
from tests.support.command import Command
from tests.support.waiting import wait_until

NAN = math.nan


def has_status(service: Aggregator, run: str, status: str) -> bool:
    return bool(service.get(f"/runs/{run}/health").json().get("status") == status)


def test_health_is_told_and_exits_as_asked(
    gradwatch: Command, invoke: Command, service: Aggregator
) -> None:
    """0 however it is, 3 for the status that a job script asked about, or a worse one (S53)."""
    good = service.peer(run="good").attach()
    good.steps(0, 1.0)
    good.send(Bye(reason="closed"))  # one that goes on would soon be called stalled
    service.peer(run="bad").attach(("h.0\x1b[31m", "h.1")).steps(0, NAN)
    for run, status in (("bad", "critical"), ("good", "healthy")):
        wait_until(partial(has_status, service, run, status), f"{run} is {status}")

    def health(*arguments: str) -> Any:
        return invoke("health", *arguments, "--url", service.url)

    assert health("good", "--fail-on", "healthy").returncode == 3
    bad = health("bad")
    assert bad.returncode == 0
    assert "critical" in bad.stdout
    message = r"NaN gradient since step 0 on rank 0: h.0\x1b[31m"
    assert f"critical nonfinite: {message}" in bad.stdout
    assert r"nan in h.0\x1b[31m on rank 0 at step 0" in bad.stdout
    assert "\x1b" not in bad.stdout
    failed = gradwatch("health", "bad", "--fail-on", "critical", "--url", service.url)
    assert failed.returncode == 3
    # As it was, but that its rank may be silent by now, and a longer line widens all.
    before, after = (
        [line.split() for line in text.splitlines()] for text in (bad.stdout, failed.stdout)
    )
    kept = ("status", "step", "score", "gradient", "layers", "records", "first")
    assert [own for own in before if own[0] in kept] == [own for own in after if own[0] in kept]
    assert health("bad", "--fail-on", "degraded").returncode == 3
    assert health("good", "--fail-on", "incomplete").returncode == 0
    assert health("good", "--fail-on", "critical").returncode == 0
    document = json.loads(health("bad", "--json").stdout)
    assert document["first_bad"] == {
        "step": 0,
        "rank": 0,
        "layer": "h.0\x1b[31m",
        "kind": "nan",
        "bad_loss": None,
        "first_gradient": "h.0\x1b[31m",
        "module": None,
        "layers": ["h.0\x1b[31m"],
        "num_layers": 1,
        "last_good_step": None,
        "batch": "",
        "place": "",
    }


def test_health_shows_what_the_training_gave(gradwatch: Command, service: Aggregator) -> None:
    """Loss, learning rate, step time, and where the gradients were read (S57)."""
    peer = service.peer(run="told").attach(("a",))
    columns = {"l2": Column.pack("<f8", [1.0])}
    scalars = {"loss": 2.5, "lr": 3e-4, "step_time_s": 0.25}
    labels = {"point": "backward"}
    peer.send(Stats(manifest_id=1, step=0, scalars=scalars, columns=columns, labels=labels))
    peer.acked()
    service.reaches("told", 0)
    silent = service.peer(run="silent").attach(("a",))
    silent.send(Stats(manifest_id=1, step=0, columns=columns))
    silent.acked()
    service.reaches("silent", 0)

    report = service.health("told")
    assert (report["lr"], report["step_time_s"]) == (3e-4, 0.25)
    shown = gradwatch("health", "told", "--url", service.url).stdout
    split = (line.partition("  ") for line in shown.splitlines())
    lines = {name: value.strip() for name, _, value in split}
    assert lines["loss"] == "2.5"
    assert lines["learning rate"] == "0.0003"
    assert lines["step time"] == "0.25 s"
    assert lines["gradients of"] == "the end of the backward pass, before clipping"

    report = service.health("silent")
    assert (report["lr"], report["step_time_s"]) == (None, None)
    shown = gradwatch("health", "silent", "--url", service.url).stdout
    assert shown.count("not given") == 3


def test_a_run_that_ended_with_a_critical_alert_still_fails_the_job(
    gradwatch: Command, service: Aggregator
) -> None:
    """The phase has changed, the status has not."""
    peer = service.peer(run="over").attach()
    peer.steps(0, NAN)
    peer.send(Bye())
    peer.acked()
    wait_until(lambda: service.json("/runs/over/health")["phase"] == "ended")
    result = gradwatch("health", "over", "--fail-on", "critical", "--url", service.url)

    assert result.returncode == 3


def test_it_says_how_often_is_measured_and_when_that_was_last(
    invoke: Command, service: Aggregator
) -> None:
    peer = service.peer(run="sparse").attach()
    peer.send(Event(name="pace", step=0, data={"every": 64}, text="every 64th step in full"))
    peer.steps(0, 1.0)
    peer.steps(64, 1.0)
    peer.send(Bye(last_step=99))
    wait_until(lambda: service.json("/runs/sparse/health")["phase"] == "ended")
    shown = invoke("health", "sparse", "--url", service.url).stdout
    lines = {" ".join(line.split()) for line in shown.splitlines()}

    assert {"step 99", "measured every 64th step in full; last at step 64"} <= lines
