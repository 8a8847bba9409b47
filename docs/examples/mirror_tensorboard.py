"""Trains a small network, and mirrors its gradients' alerts and series into TensorBoard's files.

    gradwatch serve
    python docs/examples/mirror_tensorboard.py

One batch has a NaN in it, so that there is an alert to see.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import gradwatch
from gradwatch.integrations.tensorboard import TensorBoardMirror


def train(mirror: TensorBoardMirror) -> None:
    """Train on noise; whatever is beside the mirror is as in any other loop."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradwatch.attach(model, optimizer, run="mirror-tensorboard", on_alert=mirror) as watch:
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


def main() -> None:
    """Train with event files in the folder that was given, `runs` without."""
    folder = sys.argv[1] if sys.argv[1:] else "runs"
    with SummaryWriter(folder) as writer, TensorBoardMirror(writer) as mirror:
        train(mirror)


if __name__ == "__main__":
    main()
