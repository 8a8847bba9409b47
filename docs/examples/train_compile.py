"""Trains a small compiled network, in which the eleventh batch has a NaN in it.

    gradwatch serve
    python docs/examples/train_compile.py
    gradwatch health compile-example

gradwatch is in two lines: `attach` comes after `torch.compile`, `annotate` adds the loss.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

import gradwatch

SPOILT = 10  # steps count from 0


def main() -> None:
    """Train for 20 steps."""
    parser = argparse.ArgumentParser(description="Train a small compiled network.")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    backend = parser.parse_args().backend

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    model: Any = torch.compile(net, backend=backend)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    with gradwatch.attach(model, optimizer, run="compile-example", activations=True) as watch:
        for step in range(20):
            batch = torch.randn(8, 16)
            target = batch.sum(dim=1, keepdim=True)
            if step == SPOILT:
                batch[0, 3] = torch.nan

            loss = nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            watch.annotate(loss=loss)
            optimizer.step()


if __name__ == "__main__":
    main()
