"""`gradwatch demo`: what it says of gradwatch, and what is left where it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradwatch_server.cli.demo.acts import ACTS
from gradwatch_server.cli.demo.story import (
    DemoAlert,
    DemoOrigin,
    Step,
    Story,
    find_fault,
    read_steps,
)
from tests.support.waiting import PATIENCE_S, wait_until

_, TWO, THREE = ACTS


def alert(step: int = TWO.first, *, ranks: tuple[int, ...] = (1,), **changed: Any) -> DemoAlert:
    fields: dict[str, Any] = {
        "cursor": 1,
        "state": "firing",
        "severity": "critical",
        "rule": "nonfinite",
        "message": f"NaN since step {step}",
        "first_step": step,
        "fired_step": step,
        "origin": DemoOrigin(layer="head.bias", ranks=ranks),
        "received_s": 100.1,
    }
    return DemoAlert(**fields | changed)


def told(*alerts: DemoAlert) -> list[str | None]:
    """Return the fault of each act, if step 99 ended at 100 s and the others 0.1 s later each."""
    steps = {at: Step(at, 2.5, 0.6, 100.0 + 0.1 * (at - 99)) for at in range(166)}
    story = Story(steps, list(alerts))
    return [find_fault(act, story) for act in ACTS]


EXPLODED = alert(151, rule="exploding", ranks=(0, 1), received_s=105.3)


def test_a_story_as_it_has_to_be_has_no_fault() -> None:
    resolved = alert(state="resolved", cursor=2)

    assert told(alert(), resolved, EXPLODED) == [None, None, None]


@pytest.mark.parametrize(
    ("alerts", "act", "fault"),
    [
        ([alert(7), alert(), EXPLODED], 0, "it raised a false alert: NaN since step 7"),
        ([EXPLODED], 1, "it raised no alert after the fault at step 100"),
        ([alert(rule="loss"), EXPLODED], 1, "it said loss where nonfinite was due: NaN since st"),
        ([alert(101), EXPLODED], 1, "it named step 101 for the fault at step 100"),
        ([alert(ranks=(0,)), EXPLODED], 1, "it named rank 0 for the fault on rank 1"),
        ([alert(ranks=()), EXPLODED], 1, "it named rank not known for the fault on rank 1"),
        ([alert(), alert(120), EXPLODED], 1, "it raised a false alert: NaN since step 120"),
        ([alert(received_s=101.25), EXPLODED], 1, "it was 11 steps late, at most 5 are allowed"),
        ([alert(fired_step=106), EXPLODED], 1, "it was 6 steps late, at most 5 are allowed"),
        ([alert()], 2, "it raised no alert after the fault at step 150"),
    ],
)
def test_what_was_wrong_is_said(alerts: list[DemoAlert], act: int, fault: str) -> None:
    found = told(*alerts)

    assert (found[act] or "").startswith(fault)
    assert [at for at, other in enumerate(found) if other is not None] == [act]


def test_an_alert_that_is_soon_is_in_time_however_fast_the_steps_were() -> None:
    steps = {at: Step(at, 2.5, 0.6, 100.0 + 0.01 * (at - 99)) for at in range(166)}

    assert find_fault(TWO, Story(steps, [alert(received_s=100.2)])) is None
    exploded = alert(151, rule="exploding", ranks=(0, 1), received_s=100.9)
    assert "15 steps late" in (find_fault(THREE, Story(steps, [exploded])) or "")


def test_steps_are_read_from_what_rank_0_prints() -> None:
    lines = ["a warning\n", "step  100  loss nan  norm 1.5e+03\n", "step nothing\n"]

    (step,) = read_steps(lines)

    assert (step.number, str(step.loss), step.norm) == (100, "nan", 1500.0)


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "gradwatch_server", "demo"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        started = psutil.Process(demo.pid)

        def all_started() -> list[psutil.Process] | None:
            found = started.children()
            return found if len(found) == 3 else None

        processes = wait_until(all_started, "the aggregator and two ranks")
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=PATIENCE_S)

    assert demo.returncode == 128 + signal.SIGINT
    assert errors == "gradwatch: interrupted; all that the demo started is stopped\n"
    assert not [each for each in processes or () if each.is_running()]
    assert list(tmp_path.iterdir()) == []
