"""The table of runs over HTTP: chosen, ordered, with a small curve."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from gradwatch_wire import Bye
from tests.support.aggregator import Serve
from tests.support.problems import problem
from tests.support.records import stats_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def filled(serve: Serve) -> Any:
    service = serve()
    well = service.peer(run="sweep-well").attach()
    bad = service.peer(run="sweep-bad").attach()
    service.peer(run="Other").attach()
    bad.steps(0, *[1.0] * 5, 50.0, *[1.0] * 5, *[math.nan] * 5)
    for step in range(40):
        well.send(stats_of(step, (3.0, 4.0), step_time_s=0.25))
    well.acked()
    wait_until(lambda: len(service.json("/runs")) == 3)
    service.shows(well)
    service.shows(bad)
    return service


def names(service: Any, query: str) -> list[str]:
    return [run["run"] for run in service.json(f"/runs?{query}")]


def test_runs_are_chosen_and_ordered(filled: Any) -> None:
    assert names(filled, "q=SWEEP&sort=name") == ["sweep-bad", "sweep-well"]
    assert names(filled, "sort=step")[:2] == ["sweep-well", "sweep-bad"]
    assert names(filled, "sort=worst")[0] == "sweep-bad"
    assert names(filled, "status=critical") == ["sweep-bad"]
    assert names(filled, "phase=waiting") == ["Other"]
    assert names(filled, "q=none") == []
    assert problem(filled.get("/runs?sort=size"))[0] == 422


def test_pages_keep_what_was_chosen(filled: Any) -> None:
    """The link to the next one has the same text in it."""
    first = filled.get("/runs?q=sweep&limit=1&spark=4")
    link = first.headers["link"].partition(">")[0].removeprefix("<")
    second = filled.get(link)

    found = {own["run"] for own in (*first.json(), *second.json())}
    assert found == {"sweep-bad", "sweep-well"}
    assert all("spark" in own for own in second.json())
    assert "link" not in second.headers


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sort", ["heard", "worst", "name", "step"])
def test_each_order_has_pages(filled: Any, sort: str) -> None:
    whole = names(filled, f"sort={sort}")
    found, path = [], f"/runs?sort={sort}&limit=1"
    while path:
        answer = filled.get(path)
        found += [own["run"] for own in answer.json()]
        path = answer.headers.get("link", "").partition(">")[0].removeprefix("<")
        if path:
            cursor = path.partition("cursor=")[2].partition("&")[0]
    assert found == whole
    other = "name" if sort != "name" else "step"
    status, detail = problem(filled.get(f"/runs?sort={other}&cursor={cursor}"))
    assert (status, f"sort={other}" in detail) == (422, True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "path",
    [
        "/runs",
        "/runs?spark=4&sort=worst",
        "/runs/sweep-bad/health",
        "/runs/sweep-bad/alerts",
        "/runs/sweep-bad/frames/3",
        "/runs/sweep-bad/layers",
        "/runs/sweep-bad/series",
    ],
)
def test_what_did_not_change_is_not_sent_again(filled: Any, path: str) -> None:
    def ask(tag: str) -> httpx.Response:
        answer: httpx.Response = filled.get(path, headers={"If-None-Match": tag})
        return answer

    tag = filled.get(path).headers["etag"]
    again = ask(tag)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert again.headers["cache-control"] == "no-cache"

    peer = filled.peer(run="sweep-bad").attach()
    filled.shows(peer)
    answer = ask(tag)
    assert answer.status_code != 304
    assert answer.headers.get("etag") != tag

    # Of an earlier attempt, too: its counts are those of all attempts together.
    path = "/runs/sweep-bad/health?attempt=1"
    tag = filled.get(path).headers["etag"]
    assert ask(f'"other", W/{tag}').status_code == 304
    peer.steps(0, 1.0)
    filled.shows(peer)
    assert ask(tag).status_code == 200


def test_a_run_that_is_deleted_changes_the_listing(filled: Any) -> None:
    peer = filled.peer(run="new").attach()
    peer.send(Bye(reason="done"))
    peer.acked()
    filled.shows(peer)
    tag = filled.get("/runs").headers["etag"]
    assert httpx.delete(f"{filled.url}/runs/new?confirm=new").status_code == 204

    answer = filled.get("/runs", headers={"If-None-Match": tag})

    assert answer.status_code == 200
    assert "new" not in [own["run"] for own in answer.json()]


def test_the_small_curve_hides_no_peak_and_no_nan(filled: Any) -> None:
    rows = {run["run"]: run for run in filled.json("/runs?spark=4")}

    bad = rows["sweep-bad"]["spark"]
    assert bad[:2] == pytest.approx([math.hypot(1.0, 1.0), math.hypot(50.0, 1.0)])
    assert bad[2:] == ["NaN", "NaN"]
    assert rows["sweep-well"]["spark"] == [5.0] * 4
    assert rows["sweep-well"]["step_time_s"] == 0.25
    assert rows["sweep-bad"]["alerts"]["critical"] == 1
    assert rows["Other"]["spark"] == []
    assert "spark" not in filled.json("/runs")[0]
