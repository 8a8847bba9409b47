"""The step that the optimizer takes, in the records: in any loop, and only where one was taken."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch_wire.columns import UPDATE_COLUMNS, UPDATE_RMS, WEIGHT_RMS
from tests.support.recording import Sink


def train(
    aggregator: Sink, model: nn.Module, optimizer: Any, steps: int, **settings: Any
) -> list[Any]:
    watch = aggregator.attach(model, optimizer, **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
    watch.close()
    return aggregator.of_stats()[-steps:]


def has_update(stats: Any) -> bool:
    assert len(stats.columns.keys() & set(UPDATE_COLUMNS)) in (0, len(UPDATE_COLUMNS))
    return UPDATE_RMS in stats.columns


@pytest.mark.parametrize(("every", "expected"), [(0, []), (1, [0, 1, 2, 3, 4]), (3, [0, 3])])
def test_one_step_of_so_many_has_it(aggregator: Sink, every: int, expected: list[int]) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = train(aggregator, model, optimizer, 5, updates_every=every)

    assert [stats.step for stats in found if has_update(stats)] == expected


def test_the_first_collected_step_of_so_many_has_it(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    watch = aggregator.attach(model, optimizer, every=1)
    for step in (3, 5, 7, 9, 10, 17, 40):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        watch.collect(step=step)
        optimizer.step()
    found = aggregator.stats(7)

    assert [stats.step for stats in found if has_update(stats)] == [3, 9, 17, 40]


def test_plain_sgd_moves_by_the_learning_rate_times_the_gradient(aggregator: Sink) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    watch = aggregator.attach(model, optimizer)
    model(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()
    watch.close()
    (stats,) = aggregator.stats(1)

    sizes = torch.tensor([6.0, 2.0]).sqrt()
    expected = (0.25 * torch.tensor(stats.columns["l2"].unpack()) / sizes).tolist()
    assert stats.columns[UPDATE_RMS].unpack() == pytest.approx(expected)
    weights = {
        name: each.detach().square().mean().sqrt().item() for name, each in model.named_parameters()
    }
    assert aggregator.layers(stats, WEIGHT_RMS) == pytest.approx(weights)


def test_an_optimizer_with_a_closure_has_it(aggregator: Sink) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    watch = aggregator.attach(model, optimizer)
    data = torch.randn(8, 3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(data) - 1.0).square().mean()
        loss.backward()
        return loss

    old = {name: each.detach().clone() for name, each in model.named_parameters()}
    optimizer.step(closure)
    watch.close()
    (stats,) = aggregator.stats(1)

    expected = {
        name: (each.detach() - old[name]).square().mean().sqrt().item()
        for name, each in model.named_parameters()
    }
    assert aggregator.layers(stats, UPDATE_RMS) == pytest.approx(expected)


def test_a_step_that_is_skipped_has_none(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    watch = aggregator.attach(model, optimizer, updates_every=1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        if step != 1:
            optimizer.step()
    watch.close()

    assert [has_update(stats) for stats in aggregator.stats(3)] == [True, False, True]


def test_a_step_that_the_optimizer_itself_skipped_has_none(aggregator: Sink) -> None:
    """A fused one is called, and told by a tensor to leave the weights as they are."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    watch = aggregator.attach(model, optimizer, updates_every=1, scaler=scaler)
    for step in range(3):
        optimizer.zero_grad()
        factor = math.inf if step == 1 else 1.0
        scaler.scale((factor * model(torch.randn(8, 3))).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    watch.close()

    assert [has_update(stats) for stats in aggregator.stats(3)] == [True, False, True]


def test_each_of_several_optimizers_has_it(aggregator: Sink) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.5) for part in model]
    watch = aggregator.attach(model, optimizers)
    model(torch.randn(8, 3)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    watch.close()

    assert [has_update(stats) for stats in aggregator.stats(2)] == [True, True]


def test_micro_batches_have_it_once(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    watch = aggregator.attach(model, optimizer)
    for _ in range(3):
        model(torch.randn(8, 3)).square().mean().backward()
    old = model.weight.detach().clone()
    optimizer.step()
    watch.close()
    (stats,) = aggregator.stats(1)

    moved = (model.weight.detach() - old).square().mean().sqrt().item()
    assert aggregator.layers(stats, UPDATE_RMS)["weight"] == pytest.approx(moved)


def test_the_weights_are_left_as_they_are(aggregator: Sink) -> None:
    """Bit for bit, with and without."""
    weights = []
    for every in (0, 1):
        torch.manual_seed(3)
        model = nn.Linear(3, 100)
        optimizer = torch.optim.AdamW(model.parameters())
        train(aggregator, model, optimizer, 6, updates_every=every)
        weights.append([each.detach().clone() for each in model.parameters()])

    assert all(map(torch.equal, *weights))
