"""Loops that people write by hand."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.loops.networks import Network, loss_of
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial


@loop("plain")
def plain(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.AdamW, lr=0.01)
    for step in range(trial.steps):
        trial.at(step)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        optimizer.step()
    return model


@loop("gradient clipping")
def clipping(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.SGD, lr=0.1)
    for step in range(trial.steps):
        trial.at(step)
        loss = loss_of(model, step)
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop("gradients zeroed in place")
def zeroed_in_place(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(trial.steps):
        trial.at(step)
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model, step)
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


@loop("gradient accumulation, shorter last windows")
def accumulation(trial: Trial) -> nn.Module:
    model, optimizer = trial.begin(torch.optim.AdamW, lr=0.01)
    for step in range(trial.steps):
        count = 3 if (step + 1) % 5 == 0 else 4  # a fifth window is an epoch's last
        losses = []
        for micro in range(count):
            trial.at(step, here=micro == 1)
            loss = loss_of(model, step, micro=micro)
            (loss / 4).backward()
            trial.tell_loss(loss)
            losses.append(float(loss))
        trial.truth.step(step, model, optimizer, loss=sum(losses) / count)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


def guarded(trial: Trial, *, set_to_none: bool) -> nn.Module:
    """Train with a guard of one's own: a step whose norm is not finite is left out."""
    model, optimizer = trial.begin(torch.optim.AdamW, lr=0.01)
    for step in range(trial.steps):
        trial.at(step)
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = loss_of(model, step)
        loss.backward()
        note = trial.end_pass(step, model, optimizer, loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            note.taken = False
            continue
        optimizer.step()
    return model


@loop("own guard: `if not isfinite(norm): continue`")
def own_guard(trial: Trial) -> nn.Module:
    return guarded(trial, set_to_none=True)


@loop("own guard, gradients zeroed in place")
def own_guard_in_place(trial: Trial) -> nn.Module:
    return guarded(trial, set_to_none=False)


@loop("learning rate set by a scheduler")
def scheduled(trial: Trial) -> nn.Module:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=trial.steps)
    trial.inject(model, "blocks.1.down")
    trial.attach(model, optimizer)
    for step in range(trial.steps):
        trial.at(step)
        loss = loss_of(model, step)
        loss.backward()
        trial.end_pass(step, model, optimizer, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return model
