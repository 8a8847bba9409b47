"""Finds the blocks that blow gradients up or choke them: one batch, one report.

    python docs/examples/gains_diagnostic.py

Two blocks of a healthy network are spoilt on purpose. The gain of "Transition i to i + 1" is what
block i + 1 does to the gradient on its way back, so the report points at that block.
"""

from __future__ import annotations

import torch
from torch import nn

from gradwatch import GradientGainMonitor

WIDTH = 64
DEPTH = 10
SPOILT = {4: 5.0, 7: 0.1}  # block: what its weights are multiplied with


def make_model() -> nn.Sequential:
    """Return blocks that keep the size of gradients, but for the spoilt ones."""
    model = nn.Sequential()
    for block in range(DEPTH):
        linear = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        with torch.no_grad():
            linear.weight.mul_(SPOILT.get(block, 1.0))
        model.append(nn.Sequential(linear, nn.ReLU()))
    return model


def main() -> None:
    """Run one batch forward and backward and say what is wrong."""
    torch.manual_seed(0)
    model = make_model()
    with GradientGainMonitor(model) as monitor:
        model(torch.randn(32, WIDTH)).square().mean().backward()
    print(monitor.report())
    for block, gain in enumerate(monitor.gains(), start=1):
        if gain is not None and not 0.5 <= gain <= 2.0:
            print(f"look at block {block}: it multiplies the gradient by {gain:.2f}")


if __name__ == "__main__":
    main()
