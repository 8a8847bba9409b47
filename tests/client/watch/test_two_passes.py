"""Methods that look ahead run two backward passes, at different weights, in one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from gradwatch_wire import Stats
from tests.support.recording import Sink

STEPS = 12


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def backward(model: nn.Module, seed: int) -> Tensor:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    loss: Tensor = model(x).square().mean()
    loss.backward()
    return loss


def true_total(model: nn.Module) -> float:
    norms = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
    return float(torch.stack([getattr(norm, "_local_tensor", norm) for norm in norms]).norm())


@torch.no_grad()
def ascend(model: nn.Module, by: float) -> None:
    for parameter in model.parameters():
        parameter.add_(torch.ones_like(parameter), alpha=by)


class Sharpness(torch.optim.Optimizer):
    """SAM as it is mostly written: an optimizer around another one, with two halves of a step."""

    def __init__(self, model: nn.Module, base: torch.optim.Optimizer) -> None:
        super().__init__(model.parameters(), {})
        self.model, self.base = model, base

    def first_step(self) -> None:
        ascend(self.model, 0.01)
        self.zero_grad()

    def second_step(self) -> None:
        ascend(self.model, -0.01)
        self.base.step()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> None:  # type: ignore[override]
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


def outcomes(sent: list[Stats]) -> list[tuple[int, bool]]:
    return [(stats.step, bool(stats.labels["taken"])) for stats in sent]


def total(aggregator: Sink, stats: Stats) -> float:
    return math.hypot(*aggregator.layers(stats).values())


def look_ahead(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, parts: int) -> float:
    """Run the passes of a step by hand, and return the norm of the gradients it is to use."""
    optimizer.zero_grad()
    for part in range(parts):
        backward(model, 100 * step + part)
    ascend(model, 0.01)
    optimizer.zero_grad()
    for part in range(parts):
        backward(model, 100 * step + part)
    norm = true_total(model)
    ascend(model, -0.01)
    return norm


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("skipped", [(), (4,), (4, 5, 9), (0,)])
def test_by_hand_and_with_a_guard(aggregator: Sink, parts: int, skipped: tuple[int, ...]) -> None:
    model = make()
    watch, optimizer = aggregator.attach_sgd(model)
    norms = []
    for step in range(STEPS):
        norms.append(look_ahead(model, optimizer, step, parts))
        if step not in skipped:
            optimizer.step()
    watch.close()
    sent = aggregator.of_stats()
    if skipped == (0,):  # no step before shows that two passes belong together
        norms = norms[1:]
        assert outcomes(sent) == [(step, True) for step in range(STEPS - 1)]
    else:
        assert outcomes(sent) == [(step, step not in skipped) for step in range(STEPS)]
    assert [total(aggregator, stats) for stats in sent] == pytest.approx(norms, rel=1e-5)


def test_a_wrapping_optimizer_with_two_halves_of_a_step(aggregator: Sink) -> None:
    model = make()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = Sharpness(model, base)
    watch = aggregator.attach(model, optimizer)
    norms = []
    for step in range(STEPS):
        backward(model, step)
        optimizer.first_step()
        backward(model, step)
        norms.append(true_total(model))
        optimizer.second_step()
        optimizer.zero_grad()
    watch.close()
    sent = aggregator.of_stats()
    assert outcomes(sent) == [(step, True) for step in range(STEPS)]
    assert [total(aggregator, stats) for stats in sent] == pytest.approx(norms, rel=1e-5)


def test_a_wrapping_optimizer_with_a_closure(aggregator: Sink) -> None:
    model = make()
    optimizer = Sharpness(model, torch.optim.SGD(model.parameters(), lr=0.1))
    watch = aggregator.attach(model, optimizer)
    norms: list[float] = []
    for step in range(STEPS):

        def evaluate(step: int = step) -> None:
            optimizer.zero_grad()
            backward(model, step)
            norms.append(true_total(model))

        backward(model, step)
        optimizer.step(evaluate)
        optimizer.zero_grad()
    watch.close()
    sent = aggregator.of_stats()
    assert outcomes(sent) == [(step, True) for step in range(STEPS)]
    assert [total(aggregator, stats) for stats in sent] == pytest.approx(norms, rel=1e-5)


def test_a_training_that_goes_over_to_it_and_back(aggregator: Sink) -> None:
    model = make()
    watch, optimizer = aggregator.attach_sgd(model)
    norms = []
    for step in range(STEPS):
        if step % 6 < 3:
            optimizer.zero_grad()
            backward(model, step)
            norms.append(true_total(model))
        else:
            norms.append(look_ahead(model, optimizer, step, 1))
        optimizer.step()
    watch.close()
    sent = aggregator.of_stats()
    assert outcomes(sent) == [(step, True) for step in range(STEPS)]
    assert [total(aggregator, stats) for stats in sent] == pytest.approx(norms, rel=1e-5)


def test_a_first_pass_that_is_said_to_be_a_micro_batch_is_part_of_the_step(
    aggregator: Sink,
) -> None:
    model = make()
    watch, optimizer = aggregator.attach_sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        loss = backward(model, step)
        watch.collect(loss=loss, micro_batch=True)
        optimizer.zero_grad()  # at the same weights: without a word that is a step that was skipped
        loss = backward(model, step)
        watch.collect(loss=loss)
        optimizer.step()
    watch.close()
    sent = aggregator.of_stats()
    assert outcomes(sent) == [(0, True), (1, True), (2, True)]
    assert [stats.scalars["collections"] for stats in sent] == [2.0] * 3


def test_weights_that_something_unseen_changes_do_not_hide_the_passes(aggregator: Sink) -> None:
    model = make()
    watch, _ = aggregator.attach_sgd(model)
    for step in range(STEPS):
        model.zero_grad()
        backward(model, step)
        ascend(model, 0.01)
    watch.close()
    assert outcomes(aggregator.of_stats()) == [(step, False) for step in range(STEPS - 3)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp2", "compiled"])
@pytest.mark.usefixtures("one_process")
def test_wrapped_and_compiled(aggregator: Sink, how: str) -> None:
    model: nn.Module = make()
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif how == "fsdp2":
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        fully_shard(model, mesh=mesh)
    else:
        model = torch.compile(model, backend="aot_eager")  # type: ignore[assignment]
    watch, optimizer = aggregator.attach_sgd(model)
    norms = []
    for step in range(STEPS):
        norms.append(look_ahead(model, optimizer, step, 1))
        if step != 7:
            optimizer.step()
    watch.close()
    sent = aggregator.of_stats()
    assert outcomes(sent) == [(step, step != 7) for step in range(STEPS)]
    assert [total(aggregator, stats) for stats in sent] == pytest.approx(norms, rel=1e-5)
