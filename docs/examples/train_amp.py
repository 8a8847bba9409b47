"""Trains a small network in half precision with a GradScaler; the eleventh batch overflows.

    gradwatch serve
    python docs/examples/train_amp.py
    gradwatch health amp-example

gradwatch is in two lines: `attach` is given the scaler, `annotate` adds the loss.
"""

from __future__ import annotations

import torch
from torch import nn

import gradwatch

LARGE = 10  # steps count from 0


def main() -> None:
    """Train for 20 steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gradwatch.attach(model, optimizer, run="amp-example", scaler=scaler) as watch:
        for step in range(20):
            batch = torch.randn(8, 16)
            target = batch.sum(dim=1, keepdim=True)
            if step == LARGE:
                target = target * 1e4  # the scaled gradient does not fit into half precision

            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            watch.annotate(loss=loss)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()


if __name__ == "__main__":
    main()
