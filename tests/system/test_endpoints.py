"""Several endpoints: what a training records outlives the way by which it got to the aggregator."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from tests.support.aggregator import Aggregator
from tests.support.relay import Relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

STEPS = 300


class Training:
    """A model that trains in this process, watched over these endpoints."""

    def __init__(self, endpoints: Sequence[str], **settings: Any) -> None:
        self._model = nn.Linear(2, 2)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)
        watch = gradwatch.attach(
            self._model, self._optimizer, run="gpt", endpoint=endpoints, **settings
        )
        assert isinstance(watch, gradwatch.Watch)
        self.watch = watch

    def steps(self) -> None:
        for _ in range(STEPS):
            self._optimizer.zero_grad()
            self._model(torch.ones(1, 2)).sum().backward()
            self._optimizer.step()

    def is_stored(self) -> None:
        """Wait until everything so far is acknowledged."""
        wait_until(lambda: self.watch.stats()["pending"] == 0, "everything is acknowledged")


@pytest.fixture
def training() -> Iterator[Callable[..., Training]]:
    """Begin one; it ends after the test."""
    begun: list[Training] = []

    def begin(endpoints: Sequence[str], **settings: Any) -> Training:
        begun.append(Training(endpoints, **settings))
        return begun[-1]

    yield begin
    for each in begun:
        each.watch.close()


@pytest.fixture
def relays(aggregator: Aggregator) -> Iterator[list[Relay]]:
    aggregator.start()
    made = [Relay(aggregator.ingest) for _ in range(2)]
    yield made
    for each in made:
        each.close()


def test_a_path_that_hangs_costs_no_record(
    aggregator: Aggregator, relays: list[Relay], training: Callable[..., Training], tmp_path: Path
) -> None:
    first, second = relays
    spill = tmp_path / "spill"
    one = training([first.endpoint, second.endpoint], spill=spill)
    one.steps()
    wait_until(lambda: int(one.watch.stats()["acked"]) > STEPS // 3, "the stream flows")
    first.hang()
    one.steps()
    one.is_stored()
    first.resume()
    one.steps()
    one.watch.close()
    report = aggregator.health_of_ended("gpt")

    stored = 1 + 3 * STEPS + 1  # with the manifest, and BYE
    assert report["records"] == {"stored": stored, "lost": 0, "late": 0, "unresolved": 0}
    assert report["step"] == 3 * STEPS - 1
    assert (one.watch.endpoint, one.watch.stats()["moves"]) == (second.endpoint, 1)
    assert list(spill.iterdir()) == []


def test_an_aggregator_that_comes_back_on_another_port_is_found(
    aggregator: Aggregator, training: Callable[..., Training], tmp_path: Path
) -> None:
    again = Aggregator(tmp_path / "data")
    try:
        aggregator.start()
        one = training([aggregator.ingest, again.ingest])
        one.steps()
        wait_until(lambda: int(one.watch.stats()["acked"]) > STEPS // 3, "the stream flows")
        aggregator.stop(signal.SIGKILL)
        one.steps()
        again.start()
        one.is_stored()
        one.watch.close()
        report = again.health_of_ended("gpt")

        stored = 1 + 2 * STEPS + 1
        assert report["records"] == {"stored": stored, "lost": 0, "late": 0, "unresolved": 0}
        assert one.watch.endpoint == again.ingest
        assert one.watch.url == f"{again.url}/?run=gpt"
    finally:
        again.close()
