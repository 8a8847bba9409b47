"""The table of runs over HTTP: chosen, ordered, with a small curve."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.records import stats_of


@pytest.fixture
def filled(serve: Any, peers: Any, wait_until: Any) -> Any:
    """Three runs: one that is well, one with a NaN, one without a step."""
    service = serve()
    well = peers(service.ingest, run="sweep-well").attach()
    bad = peers(service.ingest, run="sweep-bad").attach()
    peers(service.ingest, run="Other").attach()
    bad.steps(0, *[1.0] * 5, 50.0, *[1.0] * 5, *[math.nan] * 5)
    for step in range(40):
        well.send(stats_of(step, (3.0, 4.0), step_time_s=0.25))
    well.acked()
    wait_until(lambda: len(service.json("/runs")) == 3)
    service.shows(well)
    service.shows(bad)
    return service


def names(service: Any, query: str) -> list[str]:
    return [own["run"] for own in service.json(f"/runs?{query}")]


@pytest.mark.slow
def test_runs_are_chosen_and_ordered(filled: Any, problem: Any) -> None:
    """By text in the name, status and phase; the worst first, by name or by step."""
    assert names(filled, "q=SWEEP&sort=name") == ["sweep-bad", "sweep-well"]
    assert names(filled, "sort=step")[:2] == ["sweep-well", "sweep-bad"]
    assert names(filled, "sort=worst")[0] == "sweep-bad"
    assert names(filled, "status=critical") == ["sweep-bad"]
    assert names(filled, "phase=waiting") == ["Other"]
    assert names(filled, "q=none") == []
    assert problem(filled.get("/runs?sort=size"))[0] == 422
    assert problem(filled.get("/runs?sort=name&after=1-a"))[0] == 422


@pytest.mark.slow
def test_pages_keep_what_was_chosen(filled: Any) -> None:
    """The link to the next one has the same text in it."""
    first = filled.get("/runs?q=sweep&limit=1&spark=4")
    link = first.headers["link"].partition(">")[0].removeprefix("<")
    second = filled.get(link)

    found = {own["run"] for own in (*first.json(), *second.json())}
    assert found == {"sweep-bad", "sweep-well"}
    assert all("spark" in own for own in second.json())
    assert "link" not in second.headers


@pytest.mark.slow
def test_the_small_curve_hides_no_peak_and_no_nan(filled: Any) -> None:
    """As few values as are asked for, and step time and alerts beside it."""
    rows = {own["run"]: own for own in filled.json("/runs?spark=4")}

    bad = rows["sweep-bad"]["spark"]
    assert bad[:2] == pytest.approx([math.hypot(1.0, 1.0), math.hypot(50.0, 1.0)])
    assert bad[2:] == ["NaN", "NaN"]
    assert rows["sweep-well"]["spark"] == [5.0] * 4
    assert rows["sweep-well"]["step_time_s"] == 0.25
    assert rows["sweep-bad"]["alerts"]["critical"] == 1
    assert rows["Other"]["spark"] == []
    assert "spark" not in filled.json("/runs")[0]
