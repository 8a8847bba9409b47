"""One alert per incident: what follows from another is info, and nothing independent is hidden."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.entries import SilenceAdded
from gradwatch_server.core.state_codec import decode, encode
from tests.support.core import SECOND, START_NS, Cluster

NAMES = ("a.w", "b.w", "c.w")
HEALTHY = 64


@pytest.fixture
def job() -> Any:
    """A run of three modules that was healthy for 64 steps; `job.next()` is a further one."""
    made: Any = Cluster(names=NAMES).start()
    noise: Iterator[Any] = iter(np.exp(np.random.default_rng(0).normal(0.0, 0.1, (1_000, 3))))
    steps = iter(range(1_000))

    def go(*factors: float, loss: float = 1.0) -> list[Alert]:
        norms = next(noise) * (factors or (1.0, 1.0, 1.0))
        told: list[Alert] = made.step(next(steps), norms.tolist(), loss=loss * norms[0] ** 0.02)
        return told

    for _ in range(HEALTHY):
        assert go() == []
    made.next = go
    return made


def said(alerts: list[Alert]) -> list[tuple[str, str, str]]:
    return [(alert.rule, alert.change, alert.severity.value) for alert in alerts]


def test_a_loss_that_rises_after_gradients_exploded_is_part_of_it(job: Any) -> None:
    (exploding,) = job.next(300.0, 1.0, 1.0)
    assert said([exploding]) == [("exploding", "firing", "warning")]

    (loss,) = job.next(300.0, 1.0, 1.0, loss=30.0)

    assert said([loss]) == [("loss", "firing", "info")]
    assert loss.part_of == exploding.id


def test_a_consequence_that_matters_more_raises_what_it_follows_from(job: Any) -> None:
    """The alert that was told says so, with what it is; the consequence stays info."""
    (exploding,) = job.next(300.0, 1.0, 1.0)
    events = [event for _ in range(4) for event in job.next(1e-9, 1e-9, 1e-9)]

    raised = [event for event in events if event.severity == "critical"]
    assert said(raised) == [("exploding", "firing:critical", "critical")]
    assert raised[0].id == exploding.id
    assert raised[0].origin == exploding.origin
    assert raised[0].update is not None
    assert raised[0].raised_step == raised[0].update.step
    assert {event.severity.value for event in events if event.rule == "vanishing"} == {"info"}
    part = raised[0].update.part
    assert part is not None
    assert part.rule == "vanishing"
    assert raised[0].message.endswith(f"now critical ({part.what})")
    assert decode(encode(raised[0]), Alert) == raised[0]


def test_a_layer_that_turns_nan_is_told_whatever_else_goes_on(job: Any) -> None:
    job.next(300.0, 1.0, 1.0)

    told = job.next(300.0, 1.0, math.nan)

    assert ("nonfinite", "firing", "critical") in said(told)
    assert [alert.part_of for alert in told if alert.rule == "nonfinite"] == [None]


def test_what_begins_long_after_is_its_own(job: Any) -> None:
    """80 steps after gradients of one module exploded, those of another do."""
    job.next(300.0, 1.0, 1.0)
    for _ in range(80):
        job.next()

    (told,) = job.next(1.0, 1.0, 300.0)

    assert said([told]) == [("exploding", "firing", "warning")]
    assert (told.part_of, told.origin.layer) == (None, "c.w")


def test_the_same_again_within_some_steps_is_info(job: Any) -> None:
    told = [*job.next(300.0, 1.0, 1.0), *(event for _ in range(25) for event in job.next())]
    assert said(told) == [("exploding", "firing", "warning"), ("exploding", "resolved", "warning")]

    (again,) = job.next(300.0, 1.0, 1.0)

    assert said([again]) == [("exploding", "firing", "info")]


def test_what_a_silence_keeps_explains_nothing(job: Any) -> None:
    until = START_NS + 3600 * SECOND
    job.put(SilenceAdded(Silence("5" * 16, "*", "exploding", "*", until, START_NS, "ada", "")))
    (exploding,) = job.next(300.0, 1.0, 1.0)
    assert exploding.silenced

    (loss,) = job.next(300.0, 1.0, 1.0, loss=30.0)

    assert (loss.rule, loss.severity, loss.part_of) == ("loss", "warning", None)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_restart_forgets_nothing_of_it(job: Any, steps: int) -> None:
    """Saved and read back between cause and consequence."""
    (exploding,) = job.next(300.0, 1.0, 1.0)
    for _ in range(steps):
        job.next(300.0, 1.0, 1.0)
    job.attempt.closed.active_alerts = decode(encode(job.attempt.active_alerts), ActiveAlerts)

    (loss,) = job.next(300.0, 1.0, 1.0, loss=30.0)

    assert (loss.rule, loss.part_of) == ("loss", exploding.id)
