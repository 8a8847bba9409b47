"""Accelerate, in the loop of its documentation."""

from __future__ import annotations

from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.loops.networks import Network, loss_of
from benchmarks.loops.stated import check_norm
from benchmarks.loops.trial import Trial

CLIP: Final = 0.1


def train(trial: Trial, *, micro_batches: int) -> nn.Module:
    """Train; the fault is in the last micro-batch of its step."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro_batches)
    network = Network()
    trial.inject(network, "blocks.1.down")
    numbers: Any = torch.arange(trial.steps * micro_batches * accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(
        network, torch.optim.AdamW(network.parameters(), lr=0.01), DataLoader(numbers, batch_size=1)
    )
    trial.attach(model, optimizer)
    step, losses = 0, list[float]()
    for _ in loader:
        with accelerator.accumulate(model):
            micro = len(losses)
            trial.at(step, here=micro == micro_batches - 1)
            loss = loss_of(model, step, trial.rank, micro)
            accelerator.backward(loss)
            trial.tell_loss(loss)
            losses.append(loss.item())
            if accelerator.sync_gradients:
                mean = sum(losses) / len(losses)
                note = trial.truth.step(step, network, optimizer, loss=mean)
                norm: Any = accelerator.clip_grad_norm_(model.parameters(), CLIP)
                check_norm(note, float(norm))
                step, losses = step + 1, []
            optimizer.step()
            optimizer.zero_grad()
    forget_accelerator()
    return network


def forget_accelerator() -> None:
    """Let the next trial of this process begin anew: Accelerate keeps what it knows."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
