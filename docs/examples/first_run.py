"""Trains a small network for 120 steps; the batch of step 60 has a NaN in it.

gradwatch serve
python docs/examples/first_run.py
gradwatch health first-run
"""

import torch
from torch import nn

import gradwatch

SPOILT = 60  # steps count from 0

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

with gradwatch.attach(model, optimizer, run="first-run", every=1) as watch:
    for step in range(120):
        batch = torch.randn(8, 16)
        target = batch.sum(dim=1, keepdim=True)
        if step == SPOILT:
            batch[0, 3] = torch.nan

        loss = nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        watch.annotate(loss=loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm.isfinite():  # a guard as many have it: the step is skipped, and nobody is told
            optimizer.step()

print(f"loss {loss.item():.3f}; where to look: {watch.url}")
