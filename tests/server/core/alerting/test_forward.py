"""Where in the forward pass a NaN began, as the outputs of modules tell it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_wire import Column
from gradwatch_wire.columns import NOT_SEEN
from gradwatch_wire.jsonable import jsonable
from tests.server.core.test_saved_state import restored
from tests.support.core import Cluster

NAN, INF = math.nan, math.inf
MODULES = ("embed", "h.0", "h.1", "head")
FINE = (1.0, 2.0, 3.0, 4.0)


def outputs(*magnitudes: float, first: float | None = None, **scalars: float) -> dict[str, Any]:
    """Return what a record with magnitudes has; *first* is the place of the first bad module."""
    return {"activations": Column.pack("<f8", magnitudes), "nonfinite_module": first, **scalars}


def attached(cluster: Any, world: int, **settings: Any) -> Any:
    """Return a job whose ranks have declared their modules."""
    job = cluster(world, **settings)
    for rank in range(world):
        job.open(rank)
        job.declare(rank, modules=MODULES)
    return job


def of_nonfinite(alerts: list[Alert]) -> Alert:
    (alert,) = (alert for alert in alerts if alert.rule == "nonfinite")
    return alert


def test_the_first_bad_module_its_rank_and_its_past_are_named() -> None:
    """The gradients are NaN on all ranks; the outputs are those of one."""
    job = attached(Cluster, 2)
    for step in range(7):
        job.step(step, **outputs(1.0, step + 2.0, 3.0, 4.0))
    job.stats(0, 7, NAN, **outputs(*FINE))
    alert = of_nonfinite(job.stats(1, 7, NAN, **outputs(1.0, NAN, NAN, NAN, first=1)))
    origin = alert.origin

    assert (origin.module, origin.rank, origin.step, origin.layer) == ("h.0", 1, 7, None)
    assert origin.magnitude is not None
    assert math.isnan(origin.magnitude)
    assert origin.magnitudes_before == tuple((step, step + 2.0) for step in range(2, 7))
    assert alert.message == ("NaN in the forward pass since step 7 on rank 1: first from h.0")
    first_bad = job.health()["first_bad"]
    assert (first_bad["module"], first_bad["rank"], first_bad["step"]) == ("h.0", 1, 7)
    plain: Any = alert.to_dict()["origin"]
    assert plain["magnitudes_before"][-1] == {"step": 6, "magnitude": 8.0}


def test_the_first_origin_stays_when_all_weights_are_bad() -> None:
    job = attached(Cluster, 2)
    job.step(0, **outputs(*FINE))
    job.stats(0, 1, NAN, **outputs(*FINE))
    job.stats(1, 1, NAN, **outputs(1.0, 2.0, INF, NAN, first=2))
    for step in range(2, 6):
        job.step(step, NAN, **outputs(NAN, NAN, NAN, NAN, first=0))
    (alert,) = (a for a in job.attempt.active_alerts.alerts() if a.rule == "nonfinite")

    assert (alert.origin.module, alert.origin.rank, alert.origin.step) == ("h.1", 1, 1)
    assert alert.message.startswith(
        "Inf in the forward pass since step 1 on rank 1: first from h.1"
    )
    assert job.health()["first_bad"]["module"] == "h.1"


def test_weights_that_were_bad_from_the_start_name_the_module_and_no_rank() -> None:
    job = attached(Cluster, 2)
    job.stats(0, 0, NAN, **outputs(NAN, NAN, NAN, NAN, first=0))
    alert = of_nonfinite(job.stats(1, 0, NAN, **outputs(NAN, NAN, NAN, NAN, first=0)))

    assert (alert.origin.module, alert.origin.rank) == ("embed", None)


UNKNOWN = {
    "outputs that are all fine": outputs(*FINE),
    "none seen": outputs(*[NOT_SEEN] * 4),
    "an order that is not known": outputs(1.0, NAN, NAN, NAN, first=NAN),
    "a place without a module": outputs(NAN, NAN, NAN, NAN, first=9.0),
    "a place that is no number of one": outputs(NAN, NAN, NAN, NAN, first=0.5),
    "a module that is fine": outputs(1.0, NAN, NAN, NAN, first=0),
    "more numbers than modules": outputs(1.0, NAN, NAN, NAN, NAN, first=1),
    "no numbers": {"nonfinite_module": 1.0},
    "an output that was bad before": outputs(
        1.0, NAN, NAN, NAN, first=1, nonfinite_module_step=3.0, first_nonfinite_step=4.0
    ),
}


@pytest.mark.parametrize("sent", UNKNOWN.values(), ids=list(UNKNOWN))
def test_what_is_not_known_is_not_named(sent: dict[str, Any]) -> None:
    job = attached(Cluster, 1)
    job.step(0, **outputs(*FINE))
    alert = of_nonfinite(job.step(5, NAN, **sent))

    assert (alert.origin.module, alert.origin.magnitude) == (None, None)
    assert alert.origin.magnitudes_before == ()
    assert "forward pass" not in alert.message


def test_ranks_that_differ_name_no_module() -> None:
    job = attached(Cluster, 3)
    job.stats(0, 0, NAN, **outputs(*FINE))
    job.stats(1, 0, NAN, **outputs(1.0, NAN, NAN, NAN, first=1))
    alert = of_nonfinite(job.stats(2, 0, NAN, **outputs(1.0, 2.0, NAN, NAN, first=2)))

    assert (alert.origin.module, alert.origin.ranks) == (None, (1, 2))


def test_of_several_collections_the_step_is_that_of_the_gradient() -> None:
    """A record of ten steps names the one that was bad first."""
    job = attached(Cluster, 1)
    scalars = {"nonfinite_module_step": 14.0, "first_nonfinite_step": 14.0}
    job.step(9, **outputs(*FINE))
    alert = of_nonfinite(job.step(19, NAN, **outputs(1.0, NAN, NAN, NAN, first=1, **scalars)))

    assert (alert.origin.module, alert.origin.step) == ("h.0", 14)


def test_a_restored_state_tells_the_same() -> None:
    """The magnitudes before, open frames with magnitudes, the origin of an alert."""
    job = attached(Cluster, 2)
    for step in range(3):
        job.step(step, **outputs(*FINE))
    job.stats(0, 3, NAN, **outputs(1.0, NAN, NAN, NAN, first=1))
    job.state = restored(job.state)
    alert = of_nonfinite(job.stats(1, 3, NAN, **outputs(*FINE)))
    again = restored(job.state)
    (kept,) = again.runs["gpt"].current.active_alerts.alerts()

    assert (alert.origin.module, alert.origin.rank) == ("h.0", 0)
    assert alert.origin.magnitudes_before == ((0, 2.0), (1, 2.0), (2, 2.0))
    assert jsonable(kept.to_dict()) == jsonable(alert.to_dict())
