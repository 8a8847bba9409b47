"""Gradients that are not emptied between two steps: told of the steps that took them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.recording import Sink

STEPS = 4


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.randn(8, 3)).square().mean()  # type: ignore[no-any-return]


def carried(aggregator: Sink, count: int = STEPS) -> list[bool]:
    found: list[Any] = aggregator.stats(count)
    return ["carried" in stats.labels for stats in found]


def zero_nothing(_: nn.Module, __: torch.optim.Optimizer) -> None:
    pass


def clip(model: nn.Module, _: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (zero_nothing, [False, True, True, True]),
        (clip, [False, True, True, True]),
        (lambda _, optimizer: optimizer.zero_grad(), [False] * STEPS),
        (lambda _, optimizer: optimizer.zero_grad(set_to_none=False), [False] * STEPS),
        (lambda model, _: model.zero_grad(), [False] * STEPS),
    ],
    ids=["nothing", "clipped", "none", "zero", "model"],
)
@pytest.mark.parametrize("views", [False, True])
def test_what_was_not_emptied_is_told(
    aggregator: Sink, between: Callable[..., None], expected: list[bool], views: bool
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    watch, optimizer = aggregator.attach_sgd(model, lr=1e-3, every=1)
    if views:  # as in the buckets of DDP
        for each in model.parameters():
            each.grad = torch.zeros(2, *each.shape)[1]
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()
        between(model, optimizer)
    watch.close()

    assert carried(aggregator) == expected


def test_micro_batches_add_up_by_design(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    _, optimizer = aggregator.attach_sgd(model, every=1)
    for _ in range(STEPS):
        for _ in range(3):
            loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert carried(aggregator) == [False] * STEPS


def test_a_step_that_was_skipped_may_leave_its_gradients(aggregator: Sink) -> None:
    """A guard that skips waits for more, or empties them in the next step: nobody knows."""
    model = nn.Linear(3, 1)
    _, optimizer = aggregator.attach_sgd(model, every=1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        if step != 1:
            optimizer.step()

    assert carried(aggregator) == [False] * STEPS


def test_what_another_networks_pass_leaves_is_emptied_before_its_own(aggregator: Sink) -> None:
    """A GAN's generator is trained through the discriminator."""
    models = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.Linear(3, 1)})
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models.values()]
    watch = aggregator.attach(models, optimizers, every=1)
    for _ in range(STEPS):
        optimizers[1].zero_grad()
        loss_of(nn.Sequential(models["one"], models["two"])).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss_of(nn.Sequential(models["one"], models["two"])).backward()
        optimizers[0].step()
    watch.close()

    assert carried(aggregator, 2 * STEPS) == [False] * 2 * STEPS


def test_a_closure_that_empties_nothing_is_told(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    _, optimizer = aggregator.attach_sgd(model, lr=1e-3, every=1)

    def closure() -> Tensor:
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)

    assert carried(aggregator) == [False, True, True, True]


def test_two_passes_at_different_weights_are_no_sign(aggregator: Sink) -> None:
    """SAM by hand: the second pass is on gradients that were emptied."""
    model = nn.Linear(3, 1)
    _, optimizer = aggregator.attach_sgd(model, every=1)
    for _ in range(STEPS):
        loss_of(model).backward()
        with torch.no_grad():
            for each in model.parameters():
                each.add_(1e-3)
        model.zero_grad()
        loss_of(model).backward()
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(1e-3)
        optimizer.step()
        optimizer.zero_grad()

    assert carried(aggregator) == [False] * STEPS


def test_gradients_that_are_all_zero_carry_nothing(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    _, optimizer = aggregator.attach_sgd(model, every=1)
    for _ in range(STEPS):
        (0.0 * loss_of(model)).backward()
        optimizer.step()

    assert carried(aggregator) == [False] * STEPS


def test_large_parameters_are_told_by_their_version(aggregator: Sink) -> None:
    """To read them would take long; a gradient that was written to since says nothing."""
    for written in (False, True):
        model = nn.Linear(200, 200, bias=False)
        watch, optimizer = aggregator.attach_sgd(model, lr=1e-3, every=1)
        for _ in range(STEPS):
            model(torch.randn(2, 200)).square().mean().backward()
            optimizer.step()
            if written:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        watch.close()

    assert carried(aggregator, 2 * STEPS) == [False, True, True, True] + [False] * STEPS


def test_sparse_gradients_that_stay_do_not_disturb(aggregator: Sink) -> None:
    model = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    watch = aggregator.attach(model, optimizer, every=1)
    for _ in range(STEPS):
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    assert watch.stats()["faults"] == 0
    watch.close()

    assert carried(aggregator) == [False] * STEPS


def test_of_double_precision_it_is_told_by_the_version(aggregator: Sink) -> None:
    model = nn.Linear(3, 1).double()
    _, optimizer = aggregator.attach_sgd(model, lr=1e-3, every=1)
    for _ in range(STEPS):
        model(torch.randn(8, 3).double()).square().mean().backward()
        optimizer.step()

    assert carried(aggregator) == [False, True, True, True]
