"""Trains a small network, and mirrors its gradients' numbers and alerts into Weights & Biases.

    gradwatch serve
    python docs/examples/mirror_wandb.py

One batch has a NaN in it, so that there is an alert to see. WANDB_MODE=offline keeps the run here.
"""

from __future__ import annotations

import torch
import wandb
from torch import nn

import gradwatch
from gradwatch.integrations.mirror import Mirror

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

run = wandb.init(project="gradwatch-example")
run.define_metric("gradwatch/*", step_metric="gradwatch/step")
watch = gradwatch.attach(model, optimizer, run="mirror-wandb")
mirror = Mirror(watch, lambda numbers, step: run.log({**numbers, "gradwatch/step": step}))

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
    run.log({"loss": loss.item()})

mirror.close()
run.finish()
