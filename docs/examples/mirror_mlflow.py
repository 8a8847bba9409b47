"""Trains a small network, and mirrors its gradients' numbers and alerts into MLflow.

    gradwatch serve
    python docs/examples/mirror_mlflow.py

One batch has a NaN in it, so that there is an alert to see. MLFLOW_TRACKING_URI says where the run
is kept.
"""

from __future__ import annotations

import mlflow
import torch
from torch import nn

import gradwatch
from gradwatch.integrations.mirror import Mirror

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

run_id = mlflow.start_run().info.run_id
watch = gradwatch.attach(model, optimizer, run="mirror-mlflow")
mirror = Mirror(watch, lambda numbers, step: mlflow.log_metrics(numbers, step, run_id=run_id))

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
mlflow.end_run()
