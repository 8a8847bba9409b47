"""Curves of a run, its layers, groups, modules, blocks and ranks."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradwatch_wire import Bye, Column, Gains
from tests.server.api.routes.curves import rounded, send, tensors
from tests.support.aggregator import Aggregator, Serve
from tests.support.problems import problem
from tests.support.records import stats_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NAN, INF = math.nan, math.inf


def test_a_curve_of_the_run_has_every_step(service: Aggregator, peer: Any, run: str) -> None:
    """Loss, rate and step time, which were shown nowhere."""
    send(service, peer, 0, 3.0, 4.0, 5.0)

    found = service.json(
        f"/runs/{run}/series?column=norm&column=loss&column=lr&column=step_time&column=score"
    )

    assert (found["width"], found["step"]) == (1, [0, 1, 2])
    assert (found["kept_from"], found["last_step"]) == (0, 2)
    norm, loss, lr, step_time, score = found["series"]
    assert norm["last"] == norm["min"] == pytest.approx([math.hypot(x, 2.0) for x in (3, 4, 5)])
    assert loss["last"] == [0.0, 1.0, 2.0]
    assert lr["max"] == [0.1] * 3
    assert step_time["mean"] == [0.5] * 3
    assert score["n"] == [1] * 3
    assert "nan" not in norm


def test_a_curve_of_a_layer_hides_neither_extreme_nor_nan(
    service: Aggregator, peer: Any, run: str
) -> None:
    send(service, peer, 2, 1.0, 9.0, NAN, 0.0, INF, 0.5, 2.0)

    found = service.json(f"/runs/{run}/series?layer=net.a.weight&points=3")

    assert (found["width"], found["step"]) == (4, [0, 4, 8])
    (own,) = found["series"]
    assert (own["layer"], own["column"]) == ("net.a.weight", "l2")
    assert own["min"] == [1.0, 0.0, 2.0]
    assert own["max"] == [9.0, 0.5, 2.0]
    assert own["mean"] == [5.0, 0.25, 2.0]
    assert own["last"] == [9.0, 0.5, 2.0]
    assert (own["n"], own["nan"], own["inf"], own["zero"]) == (
        [2, 4, 1],
        [0, 1, 0],
        [0, 1, 0],
        [0, 1, 0],
    )
    part = service.json(f"/runs/{run}/series?layer=net.a.weight&points=1&from=4&to=7")
    assert (part["width"], part["step"], part["series"][0]["max"]) == (4, [4], [0.5])


def test_what_is_new_comes_by_cursor(service: Aggregator, peer: Any, run: str) -> None:
    """The bucket that may still grow again, and a gap where nothing was recorded."""
    send(service, peer, 0, 1.0, 2.0, 3.0)
    send(service, peer, 5, 4.0)

    found = service.json(f"/runs/{run}/series?after=2")

    assert found["step"] == [3, 4, 5]
    assert found["series"][0]["n"] == [0, 0, 1]
    assert found["series"][0]["last"][:2] == [None, None]
    coarse = service.json(f"/runs/{run}/series?after=4&points=2")
    assert (coarse["width"], coarse["step"]) == (4, [4])
    assert service.json(f"/runs/{run}/series?after=5")["step"] == []
    assert service.json(f"/runs/{run}/series?last=2")["step"] == [2, 3, 4, 5]


def test_derived_columns_are_of_the_elements(service: Aggregator, peer: Any, run: str) -> None:
    """Root mean square from the L2 norm, mean magnitude from the L1 norm."""
    columns = {"l2": Column.pack("<f8", [3.0, 2.0]), "l1": Column.pack("<f8", [5.0, 4.0])}
    record = stats_of(0, (3.0, 2.0))
    peer.send(type(record)(manifest_id=1, step=0, scalars={}, columns=columns))
    peer.acked()
    service.shows(peer)

    found = service.json(f"/runs/{run}/series?layer=net.a.weight&column=rms&column=mean_abs")

    rms, mean = found["series"]
    assert rms["last"] == pytest.approx([3.0 / math.sqrt(10)])
    assert mean["last"] == pytest.approx([0.5])


def test_groups_modules_and_blocks_have_curves_too(serve: Serve) -> None:
    service = serve()
    peer = service.peer().attach(
        ("a", "b"), groups={"host": (0,), "seed": (1,)}, modules=("emb", "head")
    )
    for step in range(200):
        stats = stats_of(step, (NAN if step == 9 else 3.0, 1.5))
        activations = Column.pack("<f8", [float(step), INF if step == 70 else -1.0])
        peer.send(replace(stats, activations=activations))
        norms = Column.pack("<f8", [8.0, 2.0 if step % 2 else 4.0, 2.0])
        peer.send(Gains(step=step, blocks=("h.0", "h.1", "h.2"), norm_type="l2", norms=norms))
    peer.send(Bye(reason="done"))
    peer.acked()
    service.shows(peer)

    def curves(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = service.json(f"/runs/gpt/series?{query}")["series"]
        return found

    query = (
        "group=host&group=seed/host&module=emb&module=head&block=h.0&block=h.2&points=50"
        "&column=l2&column=ratio&column=activation&column=gain&column=output_norm&column=norm"
    )
    before = curves(query)
    service.stop(signal.SIGKILL)
    service.start()

    found = curves(query)

    assert found == before
    assert [(own.get("group") or own.get("module") or own.get("block")) for own in found] == [
        *(None, "host", "seed/host", "emb", "head", "h.0", "h.2", "h.0", "h.2")
    ]
    norm, host, pair, emb, head, gain, last_gain, output, _ = found
    assert norm["nan"][2] == host["nan"][2] == pair["nan"][2] == 1
    assert (host["max"][0], pair["min"][0]) == (3.0, 0.5)
    assert (emb["min"][1], emb["max"][1]) == (4.0, 7.0)
    assert (sum(head["n"]), head["inf"][70 // 4]) == (1, 1)
    assert (gain["min"], gain["max"]) == ([2.0] * 50, [4.0] * 50)
    assert (sum(gain["n"]), sum(last_gain["n"]), sum(output["n"])) == (200, 0, 200)
    (default,) = curves("group=seed/host&from=199")
    assert (default["column"], default["last"]) == ("ratio", [0.5])
    status, detail = problem(service.get("/runs/gpt/series?group=host&column=ratio"))
    assert (status, "'host' has l2, rms" in detail) == (422, True)
    status, detail = problem(service.get("/runs/gpt/series?group=host/seed"))
    assert (status, "'seed/host'" in detail) == (404, True)
    (finest,) = curves("block=h.0&from=100&to=103")
    assert finest["last"] == [2.0, 4.0, 2.0, 4.0]


def test_arrays_are_the_same_as_json(service: Aggregator, peer: Any, run: str) -> None:
    send(service, peer, 0, 1.0, NAN, 3.0)
    query = f"/runs/{run}/series?layer=net.a.weight&column=l2&column=loss"
    plain = service.json(query)

    answer = service.get(f"{query}&format=safetensors")

    assert answer.headers["content-type"] == "application/vnd.safetensors"
    arrays, metadata = tensors(answer.content)
    assert arrays["step"].dtype == np.uint32
    assert arrays["step"].tolist() == plain["step"]
    assert arrays["time"].tolist() == plain["time"]
    assert json.loads(metadata["series"]) == [
        {"column": "loss"},
        {"layer": "net.a.weight", "column": "l2"},
    ]
    for number, own in enumerate(plain["series"]):
        for name in ("min", "max", "mean", "last"):
            expected = [NAN if value is None else value for value in own[name]]
            np.testing.assert_array_equal(arrays[f"{number}.{name}"], expected)
    assert arrays["1.nan"].tolist() == [0, 1, 0]
    assert "0.nan" not in arrays
    assert (int(metadata["width"]), int(metadata["last_step"])) == (1, 2)


def test_one_rank_has_curves_and_a_picture_of_its_own(service: Aggregator, run: str) -> None:
    ranks = [service.peer(run=run, rank=rank, world=2).attach() for rank in range(2)]
    for step in (0, 1, 2, 3, 1, 2):
        for rank, own in enumerate(ranks):
            norm = NAN if (step, rank) == (2, 1) else 10.0 * rank + step
            own.send(stats_of(step, (norm, 2.0), loss=float(rank)))
            own.acked()  # or one of them may be late
    for own in ranks:
        service.shows(own)

    def ask(query: str) -> dict[str, Any]:
        found: dict[str, Any] = service.json(f"/runs/{run}/{query}")
        return found

    found = ask("series?rank=1&layer=a&column=l2&column=loss&column=norm&epoch=0")
    assert (found["rank"], found["rank_from"], found["rank_reason"]) == (1, 0, None)
    loss, norm, l2 = found["series"]
    assert loss["last"] == [1.0] * 4
    assert (l2["last"], l2["nan"]) == ([10.0, 11.0, None, 13.0], [0, 0, 1, 0])
    assert norm["last"][0] == pytest.approx(math.hypot(10.0, 2.0))
    newest = ask("series?rank=0&layer=a")
    assert (newest["step"], newest["series"][0]["last"]) == ([1, 2], [1.0, 2.0])
    zeros = ask("series?rank=0&layer=a&column=nans")
    assert zeros["series"][0]["last"] == [0.0, 0.0]

    picture = ask("heatmap?rank=1&epoch=0")
    assert rounded(picture["value"][0]) == [10.0, 11.0, "nan", 13.0]
    assert picture["coverage"] == [1.0] * 4
    assert rounded(picture["usual"][0]) == [11.0] * 4  # of one rank the median of the row
    assert rounded(ask("heatmap?rank=0&epoch=0")["value"][0]) == [0.0, 1.0, 2.0, 3.0]


def test_a_rank_that_went_back_before_the_others_has_each_time_its_own(
    service: Aggregator, run: str
) -> None:
    """Nearly all that one rank sent is in the log before the other's first epoch is over."""
    ranks = [service.peer(run=run, rank=rank, world=2).attach() for rank in range(2)]
    steps = (0, 1, 2, 3, 1, 2)
    for rank, numbers in ((1, (0,)), (0, range(6)), (1, range(1, 6))):
        for number in numbers:
            ranks[rank].send(stats_of(steps[number], (10.0 * rank + number, 2.0)))
        ranks[rank].acked()
    for own in ranks:
        service.shows(own)

    for rank in range(2):
        then = service.json(f"/runs/{run}/series?rank={rank}&layer=a&epoch=0")
        assert then["step"] == [0, 1, 2, 3]
        assert then["series"][0]["last"] == [10.0 * rank + number for number in range(4)]
        now = service.json(f"/runs/{run}/series?rank={rank}&layer=a&epoch=1")
        assert now["series"][0]["last"] == [10.0 * rank + number for number in (4, 5)]


def test_what_the_log_does_not_have_of_a_rank_is_not_made_up(service: Aggregator, run: str) -> None:
    """A step of which only another rank sent anything; an attempt whose layouts are gone."""
    ranks = [service.peer(run=run, rank=rank, world=2).attach() for rank in range(2)]
    ranks[0].steps(0, 1.0, 2.0, 3.0)
    ranks[1].steps(1, 5.0, 6.0)
    for own in ranks:
        service.shows(own)

    found = service.json(f"/runs/{run}/series?rank=1&layer=a")
    assert (found["step"], found["rank_from"]) == ([0, 1, 2], 1)
    assert (found["series"][0]["last"], found["series"][0]["n"]) == ([None, 5.0, 6.0], [0, 1, 1])
    assert "log_max_age_s" in found["rank_reason"]


def test_curves_outlive_the_process_and_the_attempt(serve: Serve) -> None:
    service = serve()
    first = service.peer().attach(("a", "b"))
    first.steps(0, *map(float, range(1, 201)))
    first.send(Bye(reason="done"))
    first.acked()
    second = service.peer().attach(("a", "b"))
    second.steps(0, 5.0, 6.0)
    service.shows(second)
    query = "/runs/gpt/series?attempt=1&layer=a&column=l2&column=norm&points=64"
    before = service.json(query)
    assert (before["width"], len(before["step"]), before["attempt"]) == (4, 50, 1)

    service.stop(signal.SIGKILL)
    service.start()

    after = service.json(query)
    assert after["series"] == before["series"]
    assert after["step"] == before["step"]
    assert after["boot"] != before["boot"]
    names = [layer["name"] for layer in service.json("/runs/gpt/layers?attempt=1")["layers"]]
    assert names == ["a", "b"]
    assert service.json("/runs/gpt/series")["step"] == [0, 1]
    frame = service.json("/runs/gpt/frames/199?attempt=1")
    assert frame["layers"][0]["l2"] == 200.0
    assert [rank["rank"] for rank in frame["ranks"]] == [0]


def test_wrong_questions_are_answered_with_a_sentence(
    service: Aggregator, peer: Any, run: str
) -> None:
    send(service, peer, 3, 1.0, 2.0)

    def ask(path: str) -> tuple[int, str]:
        found: tuple[int, str] = problem(service.get(f"/runs/{run}/{path}"))
        return found

    status, detail = ask("series?layer=net.a.weigth")
    assert (status, "'net.a.weight'" in detail) == (404, True)
    status, detail = ask("series?column=gradient")
    assert (status, "loss_scale" in detail, "mean_abs" in detail) == (422, True, True)
    without = "query column: l2 is of a layer or a group; add layer=NAME"
    assert ask("series?column=l2") == (422, without)
    assert ask("series?layer=net.a.weight&column=gain") == (
        422,
        "query column: gain is of a block; add block=NAME",
    )
    assert ask("series?block=h.0") == (
        404,
        "no block 'h.0'; this attempt has no block with a curve",
    )
    assert ask("series?from=9&to=4") == (422, "query from: a step up to `to`, 4, got 9")
    assert ask("series?to=2") == (422, "query to: steps from 3 on are kept, got 2")
    assert ask("series?epoch=7") == (404, f"no epoch 7 of run {run!r}; kept are 0 to 0")
    assert ask("frames/9") == (404, f"no step 9 of run {run!r}; kept are 3 to 4")
    assert ask("heatmap?layer=nothing*")[0] == 404
    assert ask("heatmap?columns=1025")[0] == 422
    assert ask("series?points=5000")[0] == 422
    assert ask("series?rank=7") == (404, f"no rank 7 in attempt 1 of run {run!r}; there are 0")
    own = "of the run there are norm, loss, lr, loss_scale, step_time, and the columns of layers"
    assert ask("series?rank=0&column=score") == (
        422,
        f"query rank: score is not kept of each rank; {own}",
    )
    assert ask("heatmap?rank=x")[0] == 422


def test_a_run_without_a_step_has_empty_curves(service: Aggregator, peer: Any, run: str) -> None:
    path = f"/runs/{run}/layers"
    wait_until(lambda: service.get(path).is_success and service.json(path)["total"] == 2)
    assert service.json(f"/runs/{run}/series")["step"] == []
    assert service.json(f"/runs/{run}/heatmap")["value"] == [[], []]
    assert [layer["name"] for layer in service.json(f"/runs/{run}/layers")["layers"]] == [
        "net.a.weight",
        "net.b.weight",
    ]
    assert service.get(f"/runs/{run}/frames/0").status_code == 404


def test_steps_that_go_back_begin_an_epoch(service: Aggregator, peer: Any, run: str) -> None:
    """The newest is shown, an earlier one on request."""
    send(service, peer, 0, 1.0, 2.0, 3.0)
    send(service, peer, 1, 7.0)

    assert service.json(f"/runs/{run}/series")["step"] == [1]
    earlier = service.json(f"/runs/{run}/series?epoch=0")
    assert earlier["step"] == [0, 1, 2]
