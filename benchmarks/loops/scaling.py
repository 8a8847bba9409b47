"""Loops with a GradScaler."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from benchmarks.loops.networks import Network, batch
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial

FIRST_SCALE = 2.0**10
OVERFLOW = 2.0**22
"""A first scale with which the gradients of a float16 output overflow, a few times."""


def scaled(
    trial: Trial,
    optimizer: Optimizer,
    model: nn.Module,
    *,
    overflows: bool = False,
    is_given: bool = False,
    clips: bool = False,
) -> nn.Module:
    """Train as torch's own page on mixed precision shows it."""
    first_scale = OVERFLOW if overflows else FIRST_SCALE
    scaler = GradScaler("cpu", init_scale=first_scale, growth_interval=100 if overflows else 4)
    output_type = torch.float16 if overflows else torch.float32
    settings: dict[str, Any] = {"scaler": scaler} if is_given else {}
    trial.inject(model, "blocks.1.down")
    trial.attach(model, optimizer, **settings)
    for step in range(trial.steps):
        trial.at(step)
        optimizer.zero_grad()
        x, y = batch(step)
        loss = nn.functional.mse_loss(model(x).to(output_type).float(), y)
        scaler.scale(loss).backward()
        trial.tell_loss(loss)
        scale = scaler.get_scale()
        note = trial.truth.step(step, model, optimizer, loss=loss, scale=scale)
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        note.taken = scaler.get_scale() >= scale
    return model


@loop("GradScaler")
def unfused(trial: Trial) -> nn.Module:
    model = Network()
    return scaled(trial, torch.optim.SGD(model.parameters(), lr=0.05), model)


@loop("GradScaler, clipping after `unscale_`")
def unfused_clipping(trial: Trial) -> nn.Module:
    model = Network()
    return scaled(trial, torch.optim.AdamW(model.parameters(), lr=0.01), model, clips=True)


@loop("GradScaler, fused SGD")
def fused(trial: Trial) -> nn.Module:
    model = Network()
    return scaled(trial, torch.optim.SGD(model.parameters(), lr=0.05, fused=True), model)


@loop("GradScaler, fused AdamW, clipping after `unscale_`")
def fused_clipping(trial: Trial) -> nn.Module:
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    return scaled(trial, optimizer, model, clips=True)


@loop("GradScaler, first steps skipped")
def first_skipped(trial: Trial) -> nn.Module:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return scaled(trial, optimizer, model, overflows=True)


@loop("GradScaler, first steps skipped, `attach(scaler=...)`")
def first_skipped_given(trial: Trial) -> nn.Module:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return scaled(trial, optimizer, model, overflows=True, is_given=True)


@loop("GradScaler, fused SGD, first steps skipped")
def first_skipped_fused(trial: Trial) -> nn.Module:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    return scaled(trial, optimizer, model, overflows=True)
