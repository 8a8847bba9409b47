"""Single frames of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.server.api.routes.curves import send
from tests.support.aggregator import Aggregator
from tests.support.records import stats_of

pytestmark = pytest.mark.slow

NAN, INF = math.nan, math.inf


def test_a_step_is_shown_as_it_was(service: Aggregator, peer: Any, run: str) -> None:
    """The layers that are farthest from usual first, with what was usual."""
    send(service, peer, 0, *[1.0] * 5, 8.0, NAN)

    found = service.json(f"/runs/{run}/frames/5")
    assert (found["step"], found["loss"], found["lr"], found["step_time_s"]) == (5, 5.0, 0.1, 0.5)
    assert (found["num_layers"], found["num_nonfinite"], found["coverage"]) == (2, 0, 1.0)
    worst, other = found["layers"]
    assert (worst["name"], worst["l2"], worst["usual"]) == ("net.a.weight", 8.0, 1.0)
    assert (other["name"], other["l2"], other["usual"]) == ("net.b.weight", 2.0, 2.0)
    assert worst["linf"] is None
    bad = service.json(f"/runs/{run}/frames/6?worst=1")
    assert (bad["num_nonfinite"], bad["layers"][0]["l2"]) == (1, "NaN")
    named = service.json(f"/runs/{run}/frames/6?layer=net.b.weight")
    assert [layer["name"] for layer in named["layers"]] == ["net.b.weight"]


def test_each_rank_is_shown_as_it_was(service: Aggregator, run: str) -> None:
    ranks = [service.peer(run=run, rank=rank, world=3).attach() for rank in range(3)]
    for step in range(3):
        for rank, own in enumerate(ranks):
            own.send(stats_of(step, (float(rank + step), 2.0), loss=float(rank), lr=0.1))
    for own in ranks:
        own.acked()
    service.shows(ranks[0])

    found = service.json(f"/runs/{run}/frames/1?layer=a")

    assert [(rank["rank"], rank["loss"], rank["late"]) for rank in found["ranks"]] == [
        (0, 0.0, False),
        (1, 1.0, False),
        (2, 2.0, False),
    ]
    assert found["ranks"][2]["norm"] == pytest.approx(math.hypot(3.0, 2.0))
    (layer,) = found["layers"]
    assert layer["l2"] == 3.0
    assert [(rank["rank"], rank["l2"]) for rank in layer["ranks"]] == [(0, 1.0), (1, 2.0), (2, 3.0)]
    one = service.json(f"/runs/{run}/frames/1?layer=a&rank=2")
    assert [own["rank"] for own in (*one["ranks"], *one["layers"][0]["ranks"])] == [2, 2]
    assert service.get(f"/runs/{run}/frames/1?rank=7").status_code == 404


def test_a_step_taken_twice_is_shown_as_each_rank_took_it_each_time(
    service: Aggregator, run: str
) -> None:
    ranks = [service.peer(run=run, rank=rank, world=2).attach() for rank in range(2)]
    steps = (0, 1, 2, 1, 2)
    for rank, numbers in ((1, (0,)), (0, range(5)), (1, range(1, 5))):
        for number in numbers:
            ranks[rank].send(stats_of(steps[number], (10.0 * rank + number, 2.0)))
        ranks[rank].acked()
    for own in ranks:
        service.shows(own)

    def shown(step: int, epoch: int) -> list[tuple[int, float, bool]]:
        found = service.json(f"/runs/{run}/frames/{step}?layer=a&epoch={epoch}")
        late = {rank["rank"]: rank["late"] for rank in found["ranks"]}
        return [
            (rank["rank"], rank["l2"], late[rank["rank"]]) for rank in found["layers"][0]["ranks"]
        ]

    assert shown(1, 0) == [(0, 1.0, False), (1, 11.0, False)]
    assert shown(2, 0) == [(0, 2.0, False), (1, 12.0, False)]
    assert shown(1, 1) == [(0, 3.0, False), (1, 13.0, False)]
    assert shown(2, 1) == [(0, 4.0, False), (1, 14.0, False)]
    for rank in range(2):
        own = service.json(f"/runs/{run}/series?rank={rank}&layer=a&epoch=0")
        assert own["series"][0]["last"] == [10.0 * rank + number for number in range(3)]
