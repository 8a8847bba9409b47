"""Trains a small network, and mirrors its gradients' numbers and alerts into TensorBoard's files.

    gradwatch serve
    python docs/examples/mirror_tensorboard.py

One batch has a NaN in it, so that there is an alert to see. The event files are in `runs`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import gradwatch
from gradwatch.integrations.mirror import Mirror

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
writer = SummaryWriter("runs")


def log(numbers: dict[str, float], step: int) -> None:
    """Write the numbers of a step; a thread of the mirror calls it."""
    for name, number in numbers.items():
        writer.add_scalar(name, number, step)


watch = gradwatch.attach(model, optimizer, run="mirror-tensorboard")
mirror = Mirror(watch, log, layers=["0.weight", "2.weight"])

for step in range(40):
    batch = torch.randn(16, 32)
    if step == 20:
        batch[0, 0] = float("nan")
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch), torch.randint(0, 10, (16,)))
    loss.backward()
    watch.collect(loss=loss)
    if loss.isfinite():
        optimizer.step()

mirror.close()
writer.close()
