"""Trains a small network, and mirrors its gradients' alerts and series into Weights & Biases.

    gradwatch serve
    python docs/examples/mirror_wandb.py

One batch has a NaN in it, so that there is an alert to see.
"""

from __future__ import annotations

import torch
import wandb
from torch import nn

import gradwatch
from gradwatch.integrations.wandb import WandbMirror


def train(mirror: WandbMirror) -> None:
    """Train on noise; whatever is beside the mirror is as in any other loop."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradwatch.attach(model, optimizer, run="mirror-wandb", on_alert=mirror) as watch:
        mirror.follow(watch)
        for step in range(40):
            batch = torch.randn(16, 32)
            if step == 20:
                batch[0, 0] = float("nan")
            loss = nn.functional.cross_entropy(model(batch), torch.randint(0, 10, (16,)))
            optimizer.zero_grad()
            loss.backward()
            watch.annotate(loss=loss)
            if loss.isfinite():
                optimizer.step()
            else:
                watch.collect(loss=loss)
            wandb.log({"loss": loss.item()}, step=step)


def main() -> None:
    """Train in a run of W&B; WANDB_MODE=offline keeps it on this machine."""
    with wandb.init(project="gradwatch-example") as run, WandbMirror(run) as mirror:
        train(mirror)


if __name__ == "__main__":
    main()
