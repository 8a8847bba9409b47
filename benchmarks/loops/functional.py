"""Loops that use autograd in other ways than one pass over one graph."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from benchmarks.loops.networks import batch, loss_of
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial


@loop("`torch.func.functional_call`")
def called_functionally(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.SGD, lr=0.05)
    for step in range(trial.steps):
        trial.at(step)
        optimizer.zero_grad()
        x, y = batch(step)
        output = functional_call(model, dict(model.named_parameters()), (x,))
        loss = nn.functional.mse_loss(output, y)
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


@loop("retained graph, two backward passes over it")
def retained_graph(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.SGD, lr=0.05)
    for step in range(trial.steps):
        trial.at(step)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward(retain_graph=True)
        (0.5 * loss).backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


@loop("gradient penalty (double backward)")
def gradient_penalty(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.AdamW, lr=0.01)
    for step in range(trial.steps):
        trial.at(step)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        trial.at(step, here=False)  # a NaN in the slope would be one in the loss
        x = batch(step, micro=1)[0].requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = loss + 0.1 * (slope.norm(dim=1) - 1.0).square().mean()
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model
