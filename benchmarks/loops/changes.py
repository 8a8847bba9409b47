"""Loops in which what is trained changes on the way, or steps within the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.loops.networks import WIDTH, Network, loss_of
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial

CHANGE_STEP = 3


def _freeze(model: Network, *, on: bool) -> list[nn.Parameter]:
    """Freeze or unfreeze the stem and the first two blocks; return their parameters."""
    parameters = [*model.stem.parameters(), *model.blocks[:2].parameters()]
    for parameter in parameters:
        parameter.requires_grad_(not on)
    return parameters


@loop("late unfreeze")
def unfreeze(trial: Trial) -> nn.Module:
    model = Network()
    _freeze(model, on=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trial.inject(model, "blocks.1.down")
    trial.attach(model, optimizer)
    for step in range(trial.steps):
        if step == CHANGE_STEP:
            _freeze(model, on=False)
        trial.at(step)
        loss = loss_of(model, step)
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop("late unfreeze with `add_param_group`")
def unfreeze_and_add(trial: Trial) -> nn.Module:
    model = Network()
    _freeze(model, on=True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    trial.inject(model, "blocks.1.down")
    trial.attach(model, optimizer)
    for step in range(trial.steps):
        if step == CHANGE_STEP:
            optimizer.add_param_group({"params": _freeze(model, on=False), "lr": 0.001})
        trial.at(step)
        loss = loss_of(model, step)
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop("replaced head, new optimizer")
def replaced_head(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.SGD, lr=0.05)
    for step in range(trial.steps):
        if step == CHANGE_STEP:
            model.head = nn.Linear(WIDTH, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        trial.at(step)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


@loop("replaced head, added to the optimizer")
def replaced_head_added(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.SGD, lr=0.05)
    for step in range(trial.steps):
        if step == CHANGE_STEP:
            model.head = nn.Linear(WIDTH, 1)
            optimizer.add_param_group({"params": list(model.head.parameters())})
        trial.at(step)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


@loop("optimizer in the backward pass")
def optimizer_in_backward(trial: Trial) -> nn.Module:
    model = Network()
    optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}
    trial.inject(model, "blocks.1.down")
    trial.attach(model, list(optimizers.values()))
    now: list[tuple[int, Tensor]] = []

    def step_and_zero(parameter: Tensor) -> None:
        optimizer = optimizers[parameter]  # type: ignore[index]  # a parameter
        number, loss = now[-1]
        trial.truth.step(number, model, optimizer, loss=loss)
        optimizer.step()
        optimizer.zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_and_zero)
    for step in range(trial.steps):
        trial.at(step)
        loss = loss_of(model, step)
        now.append((step, loss.detach()))
        loss.backward()
        trial.tell_loss(loss)
    return model
