"""Layers of a run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.api.routes.curves import send
from tests.support.aggregator import Aggregator

pytestmark = pytest.mark.slow


def test_layers_have_their_places(service: Aggregator, peer: Any, run: str) -> None:
    send(service, peer, 0, 1.0)

    answer = service.get(f"/runs/{run}/layers")

    found = answer.json()
    assert found["order"] == "executed"
    assert [
        (
            layer["index"],
            layer["name"],
            layer["module"],
            layer["numel"],
            layer["dtype"],
            layer["shards"],
        )
        for layer in found["layers"]
    ] == [
        (0, "net.a.weight", "net.a", 10, "float32", 1),
        (1, "net.b.weight", "net.b", 10, "float32", 1),
    ]
    again = service.get(f"/runs/{run}/layers", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert [layer["name"] for layer in service.json(f"/runs/{run}/layers?q=b.w")["layers"]] == [
        "net.b.weight"
    ]
    page = service.json(f"/runs/{run}/layers?limit=1")
    assert (len(page["layers"]), page["next"]) == (1, 1)
    assert service.json(f"/runs/{run}/layers?limit=1&cursor=1")["next"] is None


def test_shards_are_counted(service: Aggregator, run: str) -> None:
    ranks = [
        service.peer(run=run, rank=rank, world=2).attach(
            ("w", "b"), shards=(f"Shard(0) {rank}/2", ""), dtypes=("bfloat16", "float32")
        )
        for rank in range(2)
    ]
    for own in ranks:
        own.steps(0, 1.0)
    service.reaches(run, 0)

    layers = service.json(f"/runs/{run}/layers")["layers"]

    assert [(layer["dtype"], layer["shards"]) for layer in layers] == [
        ("bfloat16", 2),
        ("float32", 1),
    ]
