"""Alerts of trainings whose steps are not all measured: an interval where a step is not known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_wire import Column
from gradwatch_wire.records import Stats
from tests.support.core import Cluster, stats_of

HEALTHY = 120
EVERY = 10


def run(every: int, factor: float, quiet: int = -1) -> list[Alert]:
    """Return the first event of each alert of a training whose norms rise all at once.

    Args:
        every: Steps between two that are measured.
        factor: Times by which they rise.
        quiet: Steps before a measured one at which a sentinel was quiet last, -1 for none.
    """
    job = Cluster(names=("a.w", "b.w")).start()
    random = np.random.default_rng(0)
    alerts: dict[str, Alert] = {}
    for frame in range(HEALTHY + 8):
        step = every * frame
        norms = random.lognormal(0.0, 0.1, 2) * (factor if frame >= HEALTHY else 1.0)
        last_good = step - quiet if frame and quiet >= 0 else max(step - every, -1)
        stats: Stats = stats_of(step, norms.tolist(), last_good_step=last_good)
        for alert in job.send(0, stats):
            alerts.setdefault(alert.rule, alert)
    return list(alerts.values())


@pytest.mark.parametrize(
    ("every", "factor", "quiet", "since"),
    [
        (1, 200.0, -1, f"since step {HEALTHY}"),
        (EVERY, 200.0, -1, f"between steps {EVERY * HEALTHY - EVERY} and {EVERY * HEALTHY}"),
        (EVERY, 200.0, 1, f"since step {EVERY * HEALTHY}"),  # a sentinel would have seen it
        (EVERY, 200.0, 3, f"between steps {EVERY * HEALTHY - 3} and {EVERY * HEALTHY}"),
        (EVERY, 8.0, 1, f"between steps {EVERY * HEALTHY - EVERY} and {EVERY * HEALTHY}"),
    ],
)
def test_what_rose_between_two_measured_steps_has_an_interval(
    every: int, factor: float, quiet: int, since: str
) -> None:
    (alert,) = [own for own in run(every, factor, quiet) if own.rule == "exploding"]

    assert alert.message.startswith(f"Exploding {since} on rank 0: ")
    assert alert.first_step == alert.origin.step
    last = alert.origin.last_good_step
    assert (last is None) == since.startswith("since")
    assert last is None or last < alert.first_step - 1


@pytest.mark.parametrize(("skipped", "step"), [(0, 33), (1, 37)])
def test_a_loss_that_was_not_finite_shows_when_it_began_at_the_latest(
    skipped: int, step: int
) -> None:
    job = Cluster(names=("a.w", "b.w")).start()
    job.send(0, stats_of(30, [1.0, 1.0]))
    steps = range(31, 40)
    history = {
        "step": Column.pack("<u8", steps),
        "loss": Column.pack("<f8", [math.nan if step in {33, 37} else 1.0 for step in steps]),
        "skipped": Column.pack("<u4", [skipped if step == 33 else 0 for step in steps]),
    }
    bad = stats_of(40, [math.nan] * 2, last_good_step=30, history=history)
    (alert,) = job.send(0, bad)

    assert alert.message.startswith(f"NaN gradient between steps 30 and {step} ")
    first_bad = job.health()["first_bad"]
    assert (first_bad["step"], first_bad["last_good_step"]) == (step, 30)
    assert first_bad["layer"] is None
