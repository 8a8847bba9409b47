"""`/rows`: all that is kept, in pages, of a real process fed by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from gradwatch_server.cli.export.page import RUN, Page
from gradwatch_wire import Column, Stats
from tests.support.aggregator import Aggregator

pytestmark = pytest.mark.slow

NAMES = ("net.a", "net.b", "other.c")


@pytest.fixture
def run(service: Aggregator, request: Any) -> Any:
    """A run of 10 steps in two epochs: its steps go back once, after step 6, to step 3."""
    name = f"rows-{abs(hash(request.node.name)) % 10_000}"
    peer = service.peer(run=name).attach(NAMES)
    for step in (*range(7), 3, 4, 5):
        norms = [float(step), math.nan if step == 5 else 2.0, 1e300]
        columns = {
            "l2": Column.pack("<f8", norms),
            "linf": Column.pack("<f8", [1.0, math.nan, math.nan]),
        }
        peer.send(Stats(manifest_id=1, step=step, scalars={"loss": 0.1}, columns=columns))
    peer.acked()
    service.shows(peer)
    return name


def page(service: Any, run: str, **asked: Any) -> Page:
    answer = service.get(f"/runs/{run}/rows", params=asked).raise_for_status()
    assert answer.headers["content-type"] == "application/vnd.safetensors"
    return Page.decode(answer.content)


def test_every_number_comes_as_it_was(service: Aggregator, run: str) -> None:
    found = page(service, run, epoch=0)

    assert found.facts["epochs"] == [[0, 0, 6], [1, 3, 5]]
    assert (found.epoch, found.width, found.next) == (0, 1, None)
    assert found.steps.tolist() == [*range(7)]
    l2, linf = found.rows["l2"], found.rows["linf"]
    assert l2.known.all()
    assert l2.values[:, 0].tolist() == [*range(7)]
    assert l2.values[:, 2].tolist() == [1e300] * 7
    assert math.isnan(l2.values[5, 1])
    assert linf.known[0].tolist() == [True, False, False]
    assert linf.known[5].tolist() == [True, True, False]
    loss = found.facts["run_columns"].index("loss")
    assert found.rows[RUN].values[:, loss].tolist() == [0.1] * 7
    assert (np.diff(found.times_ns) >= 0).all()


def test_what_nobody_sent_is_not_there_in_memory_either(service: Aggregator, run: str) -> None:
    newest = page(service, run, epoch=1)

    assert math.isnan(newest.rows["l2"].values[2, 1])
    assert not newest.rows["l1"].known.any()


def test_pages_put_together_are_all_there_is(service: Aggregator, run: str) -> None:
    whole = page(service, run, epoch=0)
    for limit in (1, 2, 3, 7):
        steps, at = [], 0
        while True:
            part = page(service, run, **{"epoch": 0, "from": at, "limit": limit})
            assert len(part.steps) <= limit
            steps += part.steps.tolist()
            if part.next is None:
                break
            at = part.next
        assert steps == whole.steps.tolist()
    part = page(service, run, **{"epoch": 0, "from": 2, "to": 4})
    assert (part.steps.tolist(), part.next) == ([2, 3, 4], None)
    assert page(service, run, **{"from": 100}).steps.tolist() == []


def test_only_the_layers_and_columns_that_are_asked_for_come(service: Aggregator, run: str) -> None:
    found = page(service, run, layer="net.*", column="linf")

    assert found.epoch == 1
    assert found.places.tolist() == [0, 1]
    assert set(found.rows) == {RUN, "linf"}
    nothing = page(service, run, layer="-")
    assert (nothing.places.tolist(), set(nothing.rows)) == ([], {RUN})


def test_what_cannot_be_is_refused(service: Aggregator, run: str) -> None:
    for wrong in (
        {"from": 9, "to": 8},
        {"column": "l3"},
        {"limit": 0},
        {"epoch": -1},
        {"layer": "nobody"},
    ):
        answer = service.get(f"/runs/{run}/rows", params=wrong)
        assert answer.status_code == 422
        assert "query" in json.loads(answer.content)["detail"]
    assert service.get(f"/runs/{run}/rows", params={"epoch": 7}).status_code == 404
    assert service.get("/runs/nobody/rows").status_code == 404
