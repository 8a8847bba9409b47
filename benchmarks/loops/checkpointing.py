"""Loops with activation checkpointing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.loops.networks import Network, loss_of
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial


class Checkpointed(Network):
    """Its blocks are computed again in the backward pass."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, 1) for (batch, width)."""
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)  # type: ignore[no-any-return]  # of a module


def train(trial: Trial, *, use_reentrant: bool) -> nn.Module:
    """Train with one of the two ways."""
    model = Checkpointed(use_reentrant=use_reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trial.inject(model, "blocks.1.down")
    trial.attach(model, optimizer)
    for step in range(trial.steps):
        losses = []
        for micro in range(2):
            trial.at(step, here=micro == 0)
            loss = loss_of(model, step, micro=micro)
            (loss / 2).backward()
            trial.tell_loss(loss)
            losses.append(float(loss))
        trial.truth.step(step, model, optimizer, loss=sum(losses) / 2)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop("activation checkpointing, reentrant")
def reentrant(trial: Trial) -> nn.Module:
    return train(trial, use_reentrant=True)


@loop("activation checkpointing, not reentrant")
def not_reentrant(trial: Trial) -> nn.Module:
    return train(trial, use_reentrant=False)
