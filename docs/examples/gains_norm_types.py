"""What the norm type does to the gains, where blocks differ in width.

    python docs/examples/gains_norm_types.py

Four monitors watch the same backward pass. `l1` and `l2` grow with the number of elements, so a
change of width alone moves their gains; `mean` is per element; `linf` looks at the largest one.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import nn

from gradwatch import GradientGainMonitor

WIDTHS = [64, 64, 256, 256, 64, 64]
NORM_TYPES = ["l2", "l1", "linf", "mean"]


def main() -> None:
    """Print the gains of each transition by norm type."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for size_in, size_out in zip([64, *WIDTHS], WIDTHS, strict=False):
        linear = nn.Linear(size_in, size_out)
        # Variance 1 / outputs keeps the size of a gradient element, whatever the widths.
        nn.init.normal_(linear.weight, std=size_out**-0.5)
        model.append(nn.Sequential(linear, nn.LeakyReLU(0.9)))
    with ExitStack() as stack:
        monitors = [
            stack.enter_context(GradientGainMonitor(model, norm_type=name)) for name in NORM_TYPES
        ]
        model(torch.randn(32, 64)).square().mean().backward()
    print("transition  widths     ", *(f"{name:>6}" for name in NORM_TYPES))
    for index, gains in enumerate(zip(*(monitor.gains() for monitor in monitors), strict=True)):
        widths = f"{WIDTHS[index]:3d} to {WIDTHS[index + 1]:3d}"
        shown = (f"{gain:6.2f}" for gain in gains if gain is not None)
        print(f"{index:4d} to {index + 1:2d}  {widths} ", *shown)


if __name__ == "__main__":
    main()
