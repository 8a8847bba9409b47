"""Trains a small network with Accelerate, in which the eleventh batch is spoilt.

    gradwatch serve
    accelerate launch --cpu docs/examples/train_accelerate.py
    gradwatch health accelerate-example

gradwatch is in three lines: `attach` takes what `prepare` returned, `annotate` adds the loss.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradwatch

SPOILT = 10  # batches and steps count from 0
BATCH = 8


def main() -> None:
    """Train for 20 steps."""
    inputs = torch.randn(20 * BATCH, 16)
    targets = inputs.sum(dim=1, keepdim=True)
    inputs[SPOILT * BATCH, 0] = torch.nan
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    watch = gradwatch.attach(model, optimizer, run="accelerate-example")
    for batch, target in loader:
        loss = nn.functional.mse_loss(model(batch), target)
        accelerator.backward(loss)
        watch.annotate(loss=loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
