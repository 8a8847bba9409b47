"""A model at the limits of the wire, before a real aggregator: all of it is read."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import torch
from torch import nn

import gradwatch
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NUM_LAYERS = 30_000
NAME_BYTES = 95


def ended(url: str) -> Any:
    """The health of a run, once its only rank has said goodbye."""
    health = httpx.get(url).json()
    return health if health["ranks"][0]["state"] == "ended" else None


@pytest.mark.exhaustive
def test_thirty_thousand_layers_with_long_names_are_read(
    aggregator: Aggregator, caplog: pytest.LogCaptureFixture
) -> None:
    """C45: neither the names nor six columns fit into one record; all arrives, and is placed."""
    aggregator.start()
    model = nn.Module()
    for number in range(NUM_LAYERS):
        model.register_parameter(f"{number:0>{NAME_BYTES}}", nn.Parameter(torch.ones(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    columns = ["l1", "linf", "zeros", "nans", "infs"]
    with gradwatch.attach(
        model, optimizer, run="large", endpoint=aggregator.ingest, columns=columns
    ) as watch:
        for step in range(3):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = torch.full((1,), float("nan") if number + step == 20_002 else 1.0)
            watch.collect(loss=1.5)
            optimizer.step()
        wait_until(lambda: not watch.stats()["pending"], "all is acknowledged")

    assert watch.stats()["oversize"] == watch.stats()["faults"] == 0
    health = wait_until(lambda: ended(f"{watch.http_url}/runs/large/health"), "the run has ended")
    assert (health["step"], health["layers"]["total"]) == (2, NUM_LAYERS)
    assert health["window"]["coverage"] == 1.0
    assert health["gradient_norm"]["last"] == "NaN"
    assert health["records"]["lost"] == 0
    first_bad = {name: health["first_bad"][name] for name in ("step", "layer")}
    assert first_bad == {"step": 0, "layer": f"{20_002:0>{NAME_BYTES}}"}
    assert not [record for record in caplog.records if record.name == "gradwatch"]
