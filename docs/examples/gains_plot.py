"""Plots log gains as text: bars to the left shrink the gradient, to the right they grow it.

    python docs/examples/gains_plot.py

In logarithms the gains add up: the sum of the bars is the logarithm of the norm at the first block
over that at the last. The weights here grow from block to block, so the sign changes on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from gradwatch import GradientGainMonitor

WIDTH = 64
DEPTH = 12
HALF = 24  # characters to each side of zero


def bar(value: float, largest: float) -> str:
    """Return a line with zero in the middle; a value that is not finite fills its side."""
    length = min(HALF, round(HALF * abs(value) / largest)) if math.isfinite(value) else HALF
    left, right = ("#" * length, "") if value < 0 else ("", "#" * length)
    return f"{left:>{HALF}}|{right:<{HALF}}"


def plot(values: Sequence[float | None]) -> str:
    """Return one line per transition; None is a gap."""
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    lines = []
    for index, value in enumerate(values):
        line = "missing" if value is None else f"{value:+6.2f} {bar(value, largest or 1.0)}"
        lines.append(f"{index:2d} to {index + 1:2d}  {line}".rstrip())
    return "\n".join(lines)


def main() -> None:
    """Plot the log gains of one backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for depth in range(DEPTH):
        linear = nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(linear.weight, std=(0.5 + depth / (DEPTH - 1)) * WIDTH**-0.5)
        model.append(nn.Sequential(linear, nn.LeakyReLU(0.9)))
    with GradientGainMonitor(model) as monitor:
        model(torch.randn(32, WIDTH)).square().mean().backward()
    norms = [norm or 0.0 for norm in monitor.norms()]
    print(plot(monitor.log_gains()))
    print(f"sum {sum(v or 0.0 for v in monitor.log_gains()):+.3f}", end="  ")
    print(f"log of first over last norm {math.log(norms[0] / norms[-1]):+.3f}")


if __name__ == "__main__":
    main()
