"""Pictures of a run: a code for each layer and step."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from gradwatch_server.curves import codes
from gradwatch_wire import Event
from tests.server.api.routes.curves import rounded, send, tensors
from tests.support.aggregator import Aggregator
from tests.support.records import stats_of

pytestmark = pytest.mark.slow

NAN, INF = math.nan, math.inf


def test_the_library_reads_the_arrays(service: Aggregator, peer: Any, run: str) -> None:
    send(service, peer, 0, 1.0, 2.0)

    body = service.get(f"/runs/{run}/heatmap?format=safetensors").content

    arrays = load(body)
    assert arrays["code"].shape == (2, 2)
    assert arrays["coverage"].tolist() == [1.0, 1.0]


def test_a_picture_has_a_code_for_each_cell(service: Aggregator, peer: Any, run: str) -> None:
    """Layers in their places, and no state can be taken for another one."""
    send(service, peer, 0, 1.0, 1.0, NAN, INF, 0.0)
    send(service, peer, 6, 4.0)

    answer = service.get(f"/runs/{run}/heatmap?format=safetensors")

    arrays, metadata = tensors(answer.content)
    one, four = codes.encode(np.array([1.0, 4.0])).tolist()
    assert arrays["code"][0].tolist() == [one, one, codes.NAN, codes.INF, codes.ZERO, 0, four]
    assert arrays["baseline"].tolist() == [one, codes.encode(np.array([2.0]))[0]]
    assert arrays["step"].tolist() == list(range(7))
    assert json.loads(metadata["layers"]) == ["net.a.weight", "net.b.weight"]
    assert json.loads(metadata["codes"])["nan"] == codes.NAN
    plain = service.json(f"/runs/{run}/heatmap?layer=net.a*")
    (row,) = plain["value"]
    assert rounded(row) == [1.0, 1.0, "nan", "inf", 0.0, "no_record", 4.0]
    assert plain["skipped"] == [0] * 7
    assert plain["coverage"][4:6] == [1.0, None]


def test_a_picture_goes_by_what_the_rules_take_for_usual(
    service: Aggregator, peer: Any, run: str
) -> None:
    """A row that is far off for most of the picture is not called usual for that."""
    send(service, peer, 0, *[1.0] * 40, *[100.0] * 12)

    found = service.json(f"/runs/{run}/heatmap?last=16")

    assert found["num_judged"] == 2
    assert 0.9 < found["baseline"][0] < 10.0 < found["value"][0][-9]
    assert found["baseline"][1] == pytest.approx(2.0, rel=0.002)
    other = service.json(f"/runs/{run}/heatmap?column=linf")
    assert other["num_judged"] == 0
    rms = service.json(f"/runs/{run}/heatmap?column=rms")
    assert rms["baseline"][1] == pytest.approx(2.0 / math.sqrt(10), rel=0.002)


def test_a_step_that_a_scaler_skipped_looks_different(
    service: Aggregator, peer: Any, run: str
) -> None:
    """An overflow that a GradScaler skips is how it finds its scale."""
    peer.send(stats_of(0, (INF, 2.0), loss=1.0, loss_scale=65536.0))
    peer.send(Event(step=0, name="skipped_step"))
    peer.send(stats_of(1, (1.0, 2.0), loss=1.0, loss_scale=32768.0))
    peer.acked()
    service.shows(peer)

    plain = service.json(f"/runs/{run}/heatmap")
    assert rounded(plain["value"][0]) == ["skipped", 1.0]
    assert plain["skipped"] == [1, 0]
    (own,) = service.json(f"/runs/{run}/series?layer=net.a.weight")["series"]
    assert (own["skipped"], own["n"]) == ([1, 0], [1, 1])
    assert "inf" not in own
    frame = service.json(f"/runs/{run}/frames/0")
    assert frame["skipped"] is True


def test_folded_rows_show_their_worst(service: Aggregator, peer: Any, run: str) -> None:
    send(service, peer, 0, 1.0, NAN)

    plain = service.json(f"/runs/{run}/heatmap?fold=2")

    assert len(plain["value"]) == 1
    assert plain["value"][0][1] == "nan"
    by_module = service.json(f"/runs/{run}/heatmap?fold=module")
    assert by_module["layers"] == ["net.a", "net.b"]


def test_new_columns_of_a_picture_come_by_cursor(service: Aggregator, peer: Any, run: str) -> None:
    send(service, peer, 0, 1.0, 2.0, 3.0)

    arrays, metadata = tensors(
        service.get(f"/runs/{run}/heatmap?format=safetensors&after=1").content
    )

    assert arrays["step"].tolist() == [2]
    assert arrays["code"].shape == (2, 1)
    assert "baseline" not in arrays
    assert "layers" not in metadata
