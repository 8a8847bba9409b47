"""Loops that people write by hand."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.loops.networks import Network, loss_of
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial


@loop("plain")
def plain(trial: Trial) -> nn.Module:
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trial.inject(model, "blocks.1.down")
    trial.attach(model, optimizer)
    for step in range(trial.steps):
        trial.at(step)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        trial.tell_loss(loss)
        trial.truth.step(step, model, optimizer, loss=loss)
        optimizer.step()
    return model


@loop("gradient clipping")
def clipping(trial: Trial) -> nn.Module:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trial.inject(model, "blocks.1.down")
    trial.attach(model, optimizer)
    for step in range(trial.steps):
        trial.at(step)
        loss = loss_of(model, step)
        loss.backward()
        trial.tell_loss(loss)
        trial.truth.step(step, model, optimizer, loss=loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return model
