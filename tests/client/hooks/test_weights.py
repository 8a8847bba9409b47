"""`attach(weights_every=...)`: digests of the weights in the records of few steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from gradwatch._statistics.digest import sum_of_bits
from tests.support.recording import Sink

pytestmark = pytest.mark.slow


def with_digest(records: Any) -> list[int]:
    return [stats.step for stats in records if "weight_bits" in stats.columns]


def train(model: Any, optimizer: Any, steps: int, passes: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("settings", "steps", "expected"),
    [
        ({"weights_every": 4}, 10, [0, 4, 8]),
        ({"weights_every": 4, "every": 3}, 13, [0, 6, 9, 12]),
        ({"weights_every": 1}, 3, [0, 1, 2]),
        ({"weights_every": 0}, 5, []),
        ({}, 5, []),
        ({"weights_every": 4, "first_step": 2}, 5, [4]),
    ],
)
def test_they_come_at_the_first_collected_step_of_every_so_many(
    aggregator: Sink, settings: Any, steps: int, expected: list[int]
) -> None:
    model = nn.Linear(4, 2)
    watch, optimizer = aggregator.attach_sgd(model, **settings)
    train(model, optimizer, steps)
    watch.close()

    every = settings.get("every", 1)
    assert with_digest(aggregator.stats(-(-steps // every))) == expected


def test_they_are_of_the_weights_that_the_step_has_used(aggregator: Sink) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [int(sum_of_bits(each.detach())) % 2**64 for each in (model.weight, model.bias)]
    watch = aggregator.attach(model, optimizer, weights_every=10)
    train(model, optimizer, 1)
    watch.close()
    (stats,) = aggregator.stats(1)

    assert stats.columns["weight_bits"].code == "<u8"
    found = aggregator.layers(stats, "weight_bits")
    assert [found["weight"], found["bias"]] == before


@pytest.mark.parametrize("passes", [1, 3])
def test_a_record_of_several_steps_has_the_newest(aggregator: Sink, passes: int) -> None:
    model = nn.Linear(4, 2)
    watch, optimizer = aggregator.attach_sgd(model, weights_every=6, report_every=4)
    train(model, optimizer, 16, passes)
    watch.close()

    assert with_digest(aggregator.stats(4)) == [3, 7, 15]


@pytest.mark.parametrize("is_given", [True, False])
def test_no_loss_scale_is_in_them(aggregator: Sink, *, is_given: bool) -> None:
    """Gradients are divided by it, weights are not; a scaler may be found only as it steps."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = GradScaler("cpu", init_scale=1024.0)
    norm = float(model.weight.detach().norm())
    watch = aggregator.attach(
        model, optimizer, scaler=scaler if is_given else None, weights_every=1
    )
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    watch.close()

    for stats in aggregator.stats(2):
        assert aggregator.layers(stats, "weight_l2")["weight"] == pytest.approx(norm)
        assert aggregator.layers(stats, "l2")["weight"] == pytest.approx(8.0**0.5)


def test_what_cannot_be_digested_costs_its_own_numbers(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record comes, without them."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("no digest today")

    monkeypatch.setattr("gradwatch._hooks.weights.digest", broken)
    model = nn.Linear(4, 2)
    watch, optimizer = aggregator.attach_sgd(model, weights_every=1)
    train(model, optimizer, 2)
    watch.close()

    assert with_digest(aggregator.stats(2)) == []
    assert "no digest today" in str(watch.stats()["last_error"])
