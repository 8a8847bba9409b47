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
    no, kept = codes.NO_RECORD, codes.encode(np.array([1.0, 2.0]))
    usual = arrays["usual"].tolist()
    assert usual == [[no, *[own] * 4, no, own] for own in kept]
    assert arrays["step"].tolist() == list(range(7))
    assert json.loads(metadata["layers"]) == ["net.a.weight", "net.b.weight"]
    assert json.loads(metadata["codes"])["nan"] == codes.NAN
    plain = service.json(f"/runs/{run}/heatmap?layer=net.a*")
    (row,) = plain["value"]
    assert rounded(row) == [1.0, 1.0, "nan", "inf", 0.0, "no_record", 4.0]
    assert plain["skipped"] == [0] * 7
    assert plain["coverage"][4:6] == [1.0, None]


def test_a_picture_goes_by_what_was_usual_at_each_step(
    service: Aggregator, peer: Any, run: str
) -> None:
    """Steps before an explosion look as they did, and those after it are not called usual."""
    send(service, peer, 0, *[1.0] * 40, *[100.0] * 12)

    found = service.json(f"/runs/{run}/heatmap")

    assert found["usual"][0][1:40] == pytest.approx([1.0] * 39, rel=0.005)
    assert max(found["usual"][0][40:]) < 10.0 < found["value"][0][40]
    assert found["usual"][1][1:] == pytest.approx([2.0] * 51, rel=0.005)
    assert found["spread"] == pytest.approx([1.1, 1.1], rel=0.05)
    wide = service.json(f"/runs/{run}/heatmap?from=0&columns=8")
    assert wide["usual"][0][:5] == pytest.approx([1.0] * 5, rel=0.005)
    rms = service.json(f"/runs/{run}/heatmap?column=rms")
    assert rms["usual"][1][1:] == pytest.approx([2.0 / math.sqrt(10)] * 51, rel=0.005)


def test_what_is_usual_of_other_columns_is_their_median(
    service: Aggregator, peer: Any, run: str
) -> None:
    send(service, peer, 0, 1.0, 1.0, 8.0, 8.0)

    found = service.json(f"/runs/{run}/heatmap?column=usual")
    new = service.json(f"/runs/{run}/heatmap?column=usual&after=2")

    assert found["value"][0][-1] != found["value"][0][1]
    assert len(set(found["usual"][0])) == 1
    assert new["usual"] == [row[-1:] for row in found["usual"]]


def test_the_usual_norm_is_a_curve_of_a_layer(service: Aggregator, peer: Any, run: str) -> None:
    send(service, peer, 0, *[1.0] * 40, *[100.0] * 4)

    asked = f"/runs/{run}/series?layer=net.a.weight&column=usual&column=spread"
    own, spread = service.json(asked)["series"]

    assert own["last"][0] is spread["last"][0] is None
    assert own["last"][1:40] == pytest.approx([1.0] * 39, rel=0.005)
    assert spread["last"][1:40] == pytest.approx([1.1] * 39, rel=0.05)
    frame = service.json(f"/runs/{run}/frames/20?layer=net.a.weight")
    assert frame["layers"][0]["usual"] == own["last"][20]
    assert frame["layers"][0]["spread"] == spread["last"][20]


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


def test_new_columns_of_a_picture_come_by_cursor(service: Aggregator, peer: Any, run: str) -> None:
    send(service, peer, 0, 1.0, 2.0, 3.0)

    arrays, metadata = tensors(
        service.get(f"/runs/{run}/heatmap?format=safetensors&after=1").content
    )

    assert arrays["step"].tolist() == [2]
    assert arrays["code"].shape == (2, 1)
    assert arrays["usual"].shape == (2, 1)
    assert arrays["spread"].shape == (2,)
    assert "layers" not in metadata
