"""The rule about NaN and Inf."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.alert import alert_id
from gradwatch_server.core.alerting.rules.nonfinite import NonfiniteRule
from gradwatch_server.core.alerting.sentences import headline
from tests.support.core import Cluster, context_of, frame_of, part_of

NAN, INF = math.nan, math.inf


def test_the_origin_of_an_unknown_layer_still_has_rank_and_kind() -> None:
    frame = frame_of(part_of([NAN, NAN], ordered=False))
    origin = NonfiniteRule().origin(frame, context_of("a", "b"), frame.nonfinite)

    assert (origin.layer, origin.rank, origin.kind, origin.step) == (None, 0, "nan", 7)
    assert origin.threshold is None


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"l2": [NAN]}, "nan"),
        ({"l2": [INF]}, "inf"),
        ({"l2": [NAN], "nans": [0], "infs": [2]}, "nan"),
        ({"l2": [INF], "nans": [1], "infs": [2]}, "nan"),
        ({"l2": [1.0], "nans": [0], "infs": [2]}, "inf"),
        ({"l2": [1.0], "nans": [3]}, "nan"),
    ],
)
def test_nan_counts_more_than_inf(part: dict[str, Any], kind: str) -> None:
    """A layer with both is `nan`; counts speak where the norm is finite."""
    frame = frame_of(part_of(**part))
    origin = NonfiniteRule().origin(frame, context_of("a"), frame.nonfinite)

    assert origin.kind == kind


@pytest.mark.parametrize(
    ("norms", "events"),
    [
        ([NAN], [("firing", 0)]),
        ([math.inf], [("firing", 0)]),
        ([1, NAN, 1, 1, NAN], [("firing", 1)]),
        ([1, NAN, 1, 1, 1], [("firing", 1), ("resolved", 4)]),
    ],
)
def test_nonfinite_fires_at_once(norms: list[float], events: list[tuple[str, int]]) -> None:
    job = Cluster(names=("a",)).start()
    for step, norm in enumerate(norms):
        job.step(step, [norm])

    assert [(a.state, a.resolved_step or a.fired_step) for a in job.alerts] == events


@pytest.mark.parametrize(
    ("frames", "severities"),
    [
        # (norm, loss scale, loss) per step; what the alert says after each.
        ([(NAN, 1024.0, None)], ["info"]),
        ([(NAN, 1024.0, 2.0), (NAN, 512.0, 2.0)], ["info", "info"]),
        ([(NAN, 1024.0, None), (1.0, 512.0, None), (NAN, 512.0, None)], ["info"] * 3),
        ([(NAN, 2.0, None), (NAN, 1.0, None), (NAN, 0.5, None)], ["info"] * 3),
        ([(NAN, 1024.0, NAN)], ["critical"]),
        ([(NAN, 1024.0, 2.0), (NAN, 512.0, INF)], ["info", "critical"]),
        ([(NAN, NAN, 2.0)], ["critical"]),
        ([(NAN, None, 2.0)], ["critical"]),
        ([(NAN, 1024.0, None), (NAN, None, None)], ["info", "critical"]),
    ],
)
def test_a_step_that_a_scaler_skips_matters_less(frames: list[Any], severities: list[str]) -> None:
    job = Cluster(names=("a",)).start()
    shown = []
    for step, (norm, scale, loss) in enumerate(frames):
        job.step(step, [norm], loss_scale=scale, loss=loss)
        (alert,) = (a for a in job.attempt.active_alerts.alerts() if a.rule == "nonfinite")
        shown.append(alert.severity)

    assert shown == severities
    # An event for the first, and one for each rise.
    steps = [step for step in range(len(frames)) if severities[: step + 1].count(shown[step]) == 1]
    assert [(a.severity, a.raised_step) for a in job.alerts if a.rule == "nonfinite"] == [
        (severities[step], step or None) for step in steps
    ]


def test_an_output_that_was_bad_is_no_matter_of_the_scale() -> None:
    """It began in the forward pass, as `attach(activations=...)` shows."""
    scalars = {"loss_scale": 1024.0, "nonfinite_module": 0.0}
    bad = part_of([NAN], scalars=scalars, activations=np.array([NAN]))
    fine = part_of([NAN], scalars={"loss_scale": 1024.0}, activations=np.array([1.0]))

    assert NonfiniteRule().severity_of(frame_of(bad), 1) == "critical"
    assert NonfiniteRule().severity_of(frame_of(fine), 1) == "info"


def test_what_a_skipped_step_matters_can_be_set() -> None:
    job = Cluster(names=("a",)).start()
    job.rules(nonfinite={"skipped_severity": "warning"})
    job.step(0, NAN, loss_scale=0.5)

    assert job.attempt.active_alerts.alerts()[0].severity == "warning"


def test_a_scaler_makes_no_other_rule_milder() -> None:
    """An explosion that is finite was not skipped."""
    job = Cluster(names=("a",)).start()
    for step in range(2):
        job.step(step, [1.0 if step == 0 else 500.0], loss_scale=1024.0)

    assert [(a.rule, str(a.severity)) for a in job.alerts] == [("exploding", "warning")]


def test_trouble_between_reports_is_told_with_its_own_step() -> None:
    """The alert and its id go by the step that was bad, not by that of the report."""
    job = Cluster(names=("a", "b")).start()
    job.step(10)
    (alert,) = job.step(20, l2_max=[1.0, NAN], first_nonfinite_step=13)

    assert (alert.first_step, alert.origin.step, alert.origin.layer) == (13, 13, "b")
    assert (alert.fired_step, alert.last_step) == (20, 20)
    assert alert.id == alert_id("gpt", 1, "nonfinite", "all", 13)
    first_bad = job.health()["first_bad"]
    assert [first_bad[key] for key in ("step", "rank", "layer", "kind")] == [13, 0, "b", "nan"]


@pytest.mark.parametrize(
    ("norms", "last_good", "layer", "first_gradient", "when"),
    [
        ([1.0, NAN, NAN], -1, "c", "c", "since step 64"),
        ([1.0, NAN, NAN], 63, "c", "c", "since step 64"),
        ([1.0, NAN, NAN], 1, "c", "c", "between steps 1 and 64"),
        ([NAN, NAN, NAN], 1, None, None, "between steps 1 and 64"),
    ],
)
def test_it_began_after_the_last_step_that_was_looked_at(
    norms: list[float], last_good: int, layer: str | None, first_gradient: str | None, when: str
) -> None:
    """Where all layers are bad after steps that were not looked at, the weights may have been."""
    job = Cluster().start()
    job.step(1, [1.0, 1.0, 1.0])
    # With a finite loss it is known that it did not begin there.
    job.step(64, norms, last_good_step=last_good, scalars={"loss": 1.0})

    (alert,) = job.alerts
    assert alert.origin.last_good_step == (None if last_good < 0 else last_good)
    assert (alert.origin.layer, alert.origin.first_gradient) == (layer, first_gradient)
    assert when in headline(alert)
    first_bad = job.health()["first_bad"]
    assert first_bad["last_good_step"] == alert.origin.last_good_step
    assert (first_bad["step"], first_bad["layer"]) == (64, layer)


def test_ranks_that_have_looked_at_different_steps_agree_on_the_older_one() -> None:
    parts = [part_of([NAN, 1.0], rank, last_good_step=step) for rank, step in ((0, 5), (1, 2))]
    assert frame_of(*parts, step=7).last_good_step == 2
    parts[0] = part_of([NAN, 1.0], 0, last_good_step=-1)
    assert frame_of(*parts, step=7).last_good_step is None


def test_the_batch_of_the_rank_that_it_began_on_is_told() -> None:
    """Also in `first_bad`; of a rank that is not known none is."""
    job = Cluster(world=2, names=("a", "b")).start()
    for rank in range(2):
        job.stats(rank, 0, [1.0, 1.0], batch=f"good {rank}")
    for rank in range(2):
        probe = math.nan if rank else 0.5
        job.stats(rank, 1, [math.nan, 1.0], batch=f"bad {rank}", local_probe=probe)

    (alert,) = job.alerts
    assert (alert.origin.rank, alert.origin.step, alert.origin.batch) == (1, 1, "bad 1")
    assert alert.message.endswith("; batch bad 1")
    assert alert.to_dict()["origin"]["batch"] == "bad 1"
    assert job.health()["first_bad"]["batch"] == "bad 1"


def test_a_frame_knows_the_batches_of_its_own_step_alone() -> None:
    frame = frame_of(*(part_of([1.0], rank, batch=f"of {rank}") for rank in range(2)), step=7)

    assert [frame.batch_of(rank, 7) for rank in (0, 1, 2, None)] == ["of 0", "of 1", "", ""]
    assert frame.batch_of(1, 6) == ""


def test_without_a_rank_there_is_no_batch() -> None:
    job = Cluster(world=2, names=("a", "b")).start()
    for rank in range(2):
        job.stats(rank, 0, [math.nan, 1.0], batch=f"bad {rank}")

    (alert,) = job.alerts
    assert (alert.origin.rank, alert.origin.batch) == (None, "")
    assert "batch" not in alert.message
