"""An alert that lasts: what it forgives, what it tells again, and when it is over."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.active import GONE_STEPS, ActiveAlerts
from gradwatch_server.core.alerting.active_alert import BURST, INTERVAL_NS
from gradwatch_server.core.alerting.alert import Alert, alert_id
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.flags import Flags
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.state_codec import decode, encode
from tests.support.core import Cluster

NAN = math.nan

pytestmark = pytest.mark.usefixtures("limit_alone")


def restored(attempt: Any) -> None:
    attempt.closed.active_alerts = decode(encode(attempt.active_alerts), ActiveAlerts)


def told(alerts: list[Alert]) -> list[str]:
    return [alert.change for alert in alerts]


def test_a_layer_that_alternates_fires() -> None:
    """S8: 10,000 and 60 in turn for 200 steps; once it fired, 60 holds it."""
    job = Cluster(names=("a",)).start()
    for step in range(200):
        job.step(step, [60.0 if step % 2 else 10_000.0])

    assert [(a.change, a.first_step, a.fired_step) for a in job.alerts] == [("firing", 0, 2)]


@pytest.mark.slow
def test_layers_that_join_an_old_alert_are_told() -> None:
    """S3: one layer always above the limit does not hide 30 more that reach 1e9."""
    names = [f"l{i:02}" for i in range(40)]
    job = Cluster(names=names).start()
    for step in range(200):
        job.step(step, [150.0] + [1.0] * 39)
    assert told(job.alerts) == ["firing"]

    job.step(200, [150.0] + [1e9] * 30 + [1.0] * 9)

    first, news = job.alerts
    assert news.id == first.id
    assert (news.change, news.num_layers, news.layers[0]) == ("firing:1", 31, "l00")
    assert (news.update.num_layers, news.update.layers[:2]) == (30, ("l01", "l02"))
    assert (news.worst.step, news.worst.layer, news.worst.value) == (200, "l01", 1e9)
    assert news.origin == first.origin
    assert news.message == (
        "Exploding since step 0 on rank 0: 31 layers, among them l00 at 150 (limit 100);"
        " at step 200: 30 more layers, now 1e+09 in l01"
    )
    for step in range(201, 400):
        job.step(step, [150.0] + [1e9] * 30 + [1.0] * 9)
    assert told(job.alerts) == ["firing", "firing:1"]


@pytest.mark.parametrize(("first", "then"), [(5e-8, 1e-9), (5e-8, 0.0)])
def test_a_norm_that_vanishes_further_is_told(first: float, then: float) -> None:
    """Ten times below what was told; and the like for one that is zero."""
    job = Cluster(names=("a",)).start()
    for step in range(3):
        job.step(step, [first])
    job.step(3, [first / 5])
    assert told(job.alerts) == ["firing"]

    (news,) = job.step(4, [then])

    assert news.worst.value == then
    assert news.message.endswith(f"at step 4: now {then:.3g} in a")


def test_nan_in_more_layers_is_told() -> None:
    job = Cluster(names=("a", "b", "c")).start()
    job.step(0, [1.0, 1.0, NAN], loss=1.0)
    job.step(1, [1.0, 1.0, NAN], loss=1.0)
    job.step(2, [NAN, NAN, NAN], loss=1.0)

    assert told(job.alerts) == ["firing", "firing:1"]
    assert job.alerts[-1].message.endswith("on rank 0: 3 layers, first c; at step 2: 2 more layers")


def test_what_is_worse_before_it_fires_is_told_when_it_fires() -> None:
    """The first sign is its origin; that it is 1e6 by now is said too."""
    job = Cluster(names=("a", "b")).start()
    job.step(0, [150.0, 1.0])
    (alert,) = job.step(1, [150.0, 1e6])

    assert (alert.change, alert.origin.value, alert.worst.value) == ("firing", 150.0, 1e6)
    assert alert.message.endswith("2 layers, among them a at 150 (limit 100); at worst 1e+06 in b")
    assert job.step(2, [150.0, 1e6]) == []


def test_ranks_on_which_it_shows_later_are_named() -> None:
    """The origin keeps its own."""
    job = Cluster(world=3, names=("a", "b")).start()
    for step, broken in enumerate([0, 0, 2]):
        for rank in range(3):
            a = 500.0 if rank == 0 else 1.0
            job.stats(
                rank, step, [a, 500.0 if rank == broken == 2 else 1.0], labels={"reduction": "none"}
            )

    alert = job.alerts[-1]
    assert (alert.change, alert.origin.ranks, alert.ranks) == ("firing:1", (0,), (0, 2))


def test_it_tells_of_itself_in_bounds() -> None:
    """A layer joins at each step: three events at once, then one a minute, with all till then."""
    names = [f"l{i:03}" for i in range(100)]
    job = Cluster(names=names).start()
    for step in range(50):
        job.step(step, [500.0 if layer <= step else 1.0 for layer in range(100)])
    assert told(job.alerts) == ["firing", *(f"firing:{n}" for n in range(1, BURST + 1))]

    job.now_ns += INTERVAL_NS
    (news,) = job.step(50, [500.0 if layer <= 50 else 1.0 for layer in range(100)])

    assert (news.change, news.num_layers) == (f"firing:{BURST + 1}", 51)
    assert news.update.num_layers == 51 - sum(
        a.update.num_layers if a.update else 2 for a in job.alerts[:-1]
    )


def test_a_higher_severity_does_not_wait() -> None:
    names = tuple("abcdefgh")
    job = Cluster(names=names).start()
    for step in range(7):
        bad = [NAN if layer <= step else 1.0 for layer in range(8)]
        job.step(step, bad, loss_scale=1024.0, loss=2.0 if step < 6 else NAN)

    assert told(job.alerts)[-1] == "firing:critical"
    assert job.alerts[-1].raised_step == 6


def test_it_tells_the_same_after_a_restart_at_any_step() -> None:
    names = [f"l{i}" for i in range(12)]

    def play(restart: bool) -> list[Any]:
        job = Cluster(names=names).start()
        for step in range(30):
            bad = [10.0 ** (2 + step / 3) if layer <= step else 1.0 for layer in range(12)]
            job.step(step, bad if step < 20 else 1.0)
            job.now_ns += INTERVAL_NS // 4
            if restart:
                restored(job.attempt)
        return [(a.change, a.message) for a in job.alerts]

    once = play(False)

    assert play(True) == once
    assert len({change for change, _ in once}) == len(once) > 4


def test_layers_that_are_frozen_end_their_alert() -> None:
    """S9: a vanishing layer that has no gradient any more does not fire for ever."""
    job = Cluster(names=("a", "b")).start()
    for step in range(5):
        job.step(step, [0.0, 1.0])
    job.declare(0, ["b"], manifest_id=2)
    for step in range(5, 5 + GONE_STEPS):
        job.stats(0, step, [1.0], manifest_id=2)

    fired, resolved = job.alerts
    assert (resolved.id, resolved.change) == (fired.id, "resolved")
    assert (resolved.resolved_by, resolved.resolved_step) == ("gone", 4 + GONE_STEPS)
    assert resolved.message.endswith(
        f"over at step {4 + GONE_STEPS}: its layers have no gradient any more"
    )


def test_a_layer_that_is_away_for_a_while_is_not_gone() -> None:
    """Steps of another optimizer, fewer than it takes, do not add up."""
    job = Cluster(names=("gen", "critic"))
    job.open()
    job.declare(0, ["gen"], manifest_id=1)
    job.declare(0, ["critic"], manifest_id=2)
    for step in range(6 * GONE_STEPS):
        gen = step % GONE_STEPS == 0
        job.stats(0, step, [500.0 if gen else 1.0], manifest_id=1 if gen else 2)

    assert told(job.alerts) == ["firing"]


def test_a_layer_that_turns_nan_is_not_gone() -> None:
    job = Cluster(names=("a", "b")).start()
    for step in range(2):
        job.step(step, [500.0, 1.0])
    for step in range(2, 3 * GONE_STEPS):
        job.step(step, [NAN, 1.0])

    assert [(a.rule, a.change) for a in job.alerts] == [
        ("exploding", "firing"),
        ("nonfinite", "firing"),
    ]


def test_a_rule_that_is_turned_off_ends_its_alerts() -> None:
    job = Cluster(names=("a",)).start()
    for step in range(2):
        job.step(step, [500.0])
    job.rules(exploding={"enabled": False})
    (alert,) = job.step(2, [500.0])

    assert (alert.change, alert.resolved_by) == ("resolved", "rule_off")
    assert alert.message.endswith("a at 500 (limit 100); over at step 2: the rule is off")


def test_an_alert_that_begins_at_the_same_step_again_has_an_id_of_its_own() -> None:
    job = Cluster(names=("a",)).start()
    job.step(0, NAN)
    for step in (1, 2, 3):
        job.step(step)
    (frame,) = [job.frame]
    alerts = job.attempt.active_alerts
    again = Frame(
        **{
            **{f: getattr(frame, f) for f in Frame.__slots__},
            "step": 0,
            "bad_step": 0,
            "nonfinite": np.array([True]),
        }
    )
    context = Context("gpt", 1, ("a",), {"all": np.array([True])}, job.attempt.window)
    flags = Flags({"nonfinite": np.array([True])})
    (event,) = alerts.update(again, flags, job.state.rules, context)

    assert job.alerts[0].id == alert_id("gpt", 1, "nonfinite", "all", 0)
    assert event.id == alert_id("gpt", 1, "nonfinite", "all#2", 0)


def test_it_says_how_it_spread() -> None:
    job = Cluster(world=2, names=[f"l{i:02}" for i in range(40)]).start()
    for step in range(30):
        for rank in range(2):
            bad = step + 1 if rank == 0 else max(0, step - 3)
            norms = [500.0] * bad + [1.0] * (40 - bad)
            job.stats(rank, step, norms, labels={"reduction": "none"})

    spread = job.attempt.active_alerts.alerts()[0].spread
    assert [(own.step, own.num_layers, own.num_ranks) for own in spread[:5]] == [
        (0, 1, 1),
        (1, 2, 1),
        (2, 3, 1),
        (3, 4, 1),
        (4, 5, 1),
    ]
    assert (len(spread), spread[-1].step, spread[-1].num_layers) == (16, 29, 30)
    restored(job.attempt)
    assert job.attempt.active_alerts.alerts()[0].spread == spread


def test_ranks_that_join_are_part_of_how_it_spread() -> None:
    """The layer is the same."""
    job = Cluster(world=2, names=("a", "b")).start()
    for step in range(4):
        for rank in range(2):
            far = 500.0 if rank == 0 else 1.0
            joins = 500.0 if rank == 1 and step > 1 else 1.0
            job.stats(rank, step, [far, joins], labels={"reduction": "none"})

    spread = job.attempt.active_alerts.alerts()[0].spread
    assert [(own.step, own.num_layers, own.num_ranks) for own in spread] == [(0, 1, 1), (2, 2, 2)]
