"""Loops with `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.loops.networks import Network, batch
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial

BACKEND = "aot_eager"
"""Traces forward and backward pass as the default does, and makes no machine code of them."""


def train(
    trial: Trial,
    model: nn.Module,
    optimizer: Optimizer,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    step_with: Callable[[], Any] | None = None,
) -> nn.Module:
    for step in range(trial.steps):
        trial.at(step)
        loss = loss_of(*batch(step))
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        (step_with or optimizer.step)()
        optimizer.zero_grad()
    return model


def _prepare(trial: Trial) -> tuple[Network, Optimizer]:
    model = Network()
    trial.inject(model, "blocks.1.down")
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


@loop("`torch.compile` before `attach`", is_compiled=True)
def before(trial: Trial) -> nn.Module:
    model, optimizer = _prepare(trial)
    compiled: Any = torch.compile(model, backend=BACKEND)
    trial.attach(compiled, optimizer)
    return train(trial, model, optimizer, lambda x, y: nn.functional.mse_loss(compiled(x), y))


@loop("`torch.compile` after `attach`", is_compiled=True)
def after(trial: Trial) -> nn.Module:
    model, optimizer = _prepare(trial)
    trial.attach(model, optimizer)
    compiled = torch.compile(model, backend=BACKEND)
    return train(trial, model, optimizer, lambda x, y: nn.functional.mse_loss(compiled(x), y))


@loop("`torch.compile` in place, `model.compile()`", is_compiled=True)
def in_place(trial: Trial) -> nn.Module:
    model, optimizer = _prepare(trial)
    trial.attach(model, optimizer)
    model.compile(backend=BACKEND)
    return train(trial, model, optimizer, lambda x, y: nn.functional.mse_loss(model(x), y))


@loop("`torch.compile` of each block", is_compiled=True)
def of_blocks(trial: Trial) -> nn.Module:
    model, optimizer = _prepare(trial)
    for block in model.blocks:
        block.compile(backend=BACKEND)
    trial.attach(model, optimizer)
    return train(trial, model, optimizer, lambda x, y: nn.functional.mse_loss(model(x), y))


@loop("`torch.compile` of the loss function", is_compiled=True)
def of_the_loss(trial: Trial) -> nn.Module:
    model, optimizer = _prepare(trial)
    trial.attach(model, optimizer)

    @torch.compile(backend=BACKEND)
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(x), y)

    return train(trial, model, optimizer, loss_of)


@loop("`torch.compile` of the optimizer's step", is_compiled=True)
def of_the_step(trial: Trial) -> nn.Module:
    model, optimizer = _prepare(trial)
    trial.attach(model, optimizer)

    @torch.compile(backend=BACKEND)
    def step_with() -> None:
        optimizer.step()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(x), y)

    return train(trial, model, optimizer, loss_of, step_with)


@loop("compiled autograd", is_compiled=True)
def compiled_autograd(trial: Trial) -> nn.Module:
    with torch._dynamo.config.patch(compiled_autograd=True):
        model, optimizer = _prepare(trial)
        compiled: Any = torch.compile(model, backend=BACKEND)
        trial.attach(compiled, optimizer)
        return train(trial, model, optimizer, lambda x, y: nn.functional.mse_loss(compiled(x), y))
