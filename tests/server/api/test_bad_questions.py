"""Every reading route says of a wrong question what was wrong with it, and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.aggregator import Aggregator
from tests.support.peer import Peer
from tests.support.problems import problem
from tests.support.records import stats_of

pytestmark = pytest.mark.slow

LONG = "x" * 5_000
HUGE = 10**30

STEPS = (
    ("from=-1", "query from: Input should be greater than or equal to 0, got '-1'"),
    ("from=NaN", "query from: Input should be a valid integer"),
    ("from=1e3", "query from: Input should be a valid integer"),
    (f"to={HUGE}", "query to: Input should be less than or equal to"),
    ("to=inf", "query to: Input should be a valid integer"),
    ("from=", "query from: Input should be a valid integer"),
    ("last=0", "query last: Input should be greater than or equal to 1, got '0'"),
    ("last=4097", "query last: Input should be less than or equal to 4096"),
    ("after=-5", "query after: Input should be greater than or equal to 0"),
    ("from=3&to=1", "query from: a step up to `to`, 1, got 3"),
    ("epoch=9", "no epoch 9 of run"),
    ("epoch=-1", "query epoch: Input should be greater than or equal to 0"),
    ("attempt=0", "query attempt: Input should be greater than or equal to 1"),
    ("attempt=9", "no attempt 9 of run"),
    ("rank=5", "no rank 5 in attempt 1 of run 'known'; there are 0"),
    ("rank=-1", "query rank: Input should be greater than or equal to 0"),
    (f"rank={1 << 31}", "query rank: Input should be less than"),
    ("format=xml", "query format: Input should be 'json' or 'safetensors', got 'xml'"),
    ("colour=red", "query: 'colour' is not known here; allowed: "),
)
SERIES = (
    ("points=0", "query points: Input should be greater than or equal to 1, got '0'"),
    (f"points={HUGE}", "query points: Input should be less than or equal to 4096"),
    ("points=-3", "query points: Input should be greater"),
    ("points=NaN", "query points: Input should be a valid integer"),
    ("column=", "query column: no column ''; there are of the run norm, loss"),
    (f"column={LONG}", "query column: no column 'xxx"),
    ("column=gradient", "there are of the run norm, loss, lr"),
    ("column=rms", "query column: rms is of a layer or a group; add layer=NAME"),
    ("layer=", "no layer ''; /layers has the names"),
    ("layer=aa", "no layer 'aa'; the nearest names are 'a'"),
    (f"layer={LONG}", "no layer 'xxx"),
    ("&".join(f"layer={n}" for n in range(17)), "query layer: List should have at most 16 items"),
    ("group=host", "no group 'host'; this attempt has no group with a curve"),
    ("module=emb", "no module 'emb'; this attempt has no module with a curve"),
    ("block=h.0", "no block 'h.0'; this attempt has no block with a curve"),
    ("rank=0&column=coverage", "query rank: coverage is not kept of each rank"),
)
HEATMAP = (
    ("columns=0", "query columns: Input should be greater than or equal to 1"),
    ("columns=1025", "query columns: Input should be less than or equal to 1024"),
    ("column=norm", "query column: no column 'norm'; there are l2,"),
    ("layer=zz*", "no layer fits 'zz*'; /layers has the names"),
    (f"layer={LONG}", "query layer: String should have at most 500 characters"),
)
QUESTIONS = [
    *(("series", *own) for own in (*STEPS, *SERIES)),
    *(("heatmap", *own) for own in (*STEPS, *HEATMAP)),
    ("frames/9", "", "no step 9 of run 'known'; kept are 3 to 4"),
    ("frames/-1", "", "path step: Input should be greater than or equal to 0"),
    ("frames/NaN", "", "path step: Input should be a valid integer"),
    (f"frames/{HUGE}", "", "path step: Input should be less than or equal to"),
    ("frames/3", "worst=-1", "query worst: Input should be greater"),
    ("frames/3", "worst=1001", "query worst: Input should be less than or equal to 1000"),
    ("frames/3", "layer=zz", "no layer 'zz'"),
    ("frames/3", "rank=4", "no rank 4 in attempt 1"),
    ("frames/3", "epoch=2", "no epoch 2 of run 'known'; kept are 0 to 0"),
    ("layers", "limit=0", "query limit: Input should be greater than or equal to 1"),
    ("layers", "cursor=-1", "query cursor: Input should be greater than or equal to 0"),
    ("layers", "cursor=x", "query cursor: Input should be a valid integer"),
    ("layers", f"q={LONG}", "query q: String should have at most 500 characters"),
    ("layers", "attempt=7", "no attempt 7 of run 'known'; kept are 1 to 1"),
    ("health", "attempt=1.5", "query attempt: Input should be a valid integer"),
    ("health", "points=3", "query: 'points' is not known here; allowed: attempt"),
    ("alerts", "state=loud", "query state: Input should be 'pending', 'firing' or 'resolved'"),
]
RUNS = (
    ("sort=size", "query sort: Input should be 'heard', 'worst', 'name' or 'step', got 'size'"),
    ("status=fine", "query status: Input should be 'unknown', 'healthy'"),
    ("phase=1", "query phase: Input should be 'waiting', 'running'"),
    ("limit=0", "query limit: Input should be greater than or equal to 1"),
    ("limit=-1", "query limit: Input should be greater"),
    ("spark=513", "query spark: Input should be less than or equal to 512"),
    ("cursor=x", "query cursor: the one of a Link header of sort=heard, got 'x'"),
    ("since=0", "query: 'since' is not known here; allowed: cursor, limit, phase, q, sort, spark"),
    (f"q={LONG}", "query q: String should have at most 500 characters"),
)


@pytest.fixture(scope="module")
def known(service: Aggregator) -> Iterator[Any]:
    """A service with a run of two steps, whose name is `known`."""
    peer = Peer(service.ingest, "known").attach(("a", "b"))
    for step in (3, 4):
        peer.send(stats_of(step, (1.0, 2.0)))
    peer.acked()
    service.shows(peer)
    yield service
    peer.close()


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("route", "query", "told"), QUESTIONS)
def test_what_is_wrong_and_what_is_allowed_is_told(
    known: Any, route: str, query: str, told: str
) -> None:
    status, detail = problem(known.get(f"/runs/known/{route}?{query}"))

    assert status in (404, 422)
    assert told in detail
    assert len(detail) < 1_000


@pytest.mark.parametrize(("query", "told"), RUNS)
def test_the_table_of_runs_says_so_too(known: Any, query: str, told: str) -> None:
    status, detail = problem(known.get(f"/runs?{query}"))

    assert (status, told in detail) == (422, True), detail


@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    "route",
    [
        *("", "series", "heatmap", "frames/1", "layers", "health", "alerts", "alerts/stream"),
        *("gains", "noise-scale", "groups"),
    ],
)
@pytest.mark.parametrize("name", ["Known", LONG, "<script>", "%00", "\u202e"])
def test_a_run_that_is_not_there_is_named_with_those_that_are(
    known: Any, route: str, name: str
) -> None:
    """The name comes back in ASCII, and not all of it."""
    answer = known.get(f"/runs/{quote(name, safe='')}/{route}".rstrip("/"))

    status, detail = problem(answer)
    assert status == 404
    assert detail.isascii()
    assert len(detail) < 1_000
    assert "known" in detail


@pytest.mark.parametrize("tag", ["nonsense", '"', "W/", '"a","b', "*" * 3_000, "\x7f", '""'])
@pytest.mark.parametrize("route", ["series", "heatmap", "layers"])
def test_a_tag_that_was_never_given_out_is_no_tag(known: Any, route: str, tag: str) -> None:
    """The whole answer comes."""
    answer = known.get(f"/runs/known/{route}", headers={"If-None-Match": tag})

    assert (answer.status_code, "etag" in answer.headers) == (200, True)


@pytest.mark.parametrize("alert", ["0" * 16, LONG, "..%2f", "stream%00"])
@pytest.mark.parametrize("route", ["", "/layers"])
def test_an_alert_that_is_not_there(known: Any, alert: str, route: str) -> None:
    assert problem(known.get(f"/alerts/{alert}{route}"))[0] == 404


def test_a_range_beyond_the_last_step_is_empty(known: Any) -> None:
    assert known.json("/runs/known/series?from=1000")["step"] == []
    assert known.json("/runs/known/heatmap?from=1000")["value"] == [[], []]
    assert known.json("/runs/known/series?after=1000")["step"] == []
    assert known.json("/runs/known/series?rank=0&from=1000")["rank_from"] is None
