"""Gains under gradient accumulation: several backward passes before one optimizer step.

    python docs/examples/gains_accumulation.py

Parameters add up the gradients of micro-batches, a block's output does not: each micro-batch has
outputs of its own. So read and `reset()` after each backward. With the loss divided by the number
of micro-batches, the root of the summed squares is the norm of the whole batch, which one backward
pass over everything confirms. (To keep just the last micro-batch: `strict_single_backward=False`.)
"""

from __future__ import annotations

import math

import torch
from torch import nn

from gradwatch import GradientGainMonitor

WIDTH = 32
DEPTH = 4
MICRO_BATCHES = 4


def main() -> None:
    """Print the norms by micro-batch, put together, and of the whole batch at once."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH))
    )
    batch = torch.randn(64, WIDTH)
    squares = [0.0] * DEPTH
    with GradientGainMonitor(model) as monitor:
        for number, part in enumerate(batch.chunk(MICRO_BATCHES)):
            loss = (model(part) - part).square().mean() / MICRO_BATCHES
            loss.backward()
            norms = [norm or 0.0 for norm in monitor.norms()]
            squares = [total + norm**2 for total, norm in zip(squares, norms, strict=True)]
            print(f"micro-batch {number}:", *(f"{norm:.6f}" for norm in norms))
            monitor.reset()

        (model(batch) - batch).square().mean().backward()
        whole = [norm or 0.0 for norm in monitor.norms()]
    together = [math.sqrt(total) for total in squares]
    print("together:     ", *(f"{norm:.6f}" for norm in together))
    print("whole batch:  ", *(f"{norm:.6f}" for norm in whole))
    pairs = zip(together, whole, strict=True)
    agree = all(math.isclose(one, other, rel_tol=1e-4) for one, other in pairs)
    print("they agree" if agree else "they differ")


if __name__ == "__main__":
    main()
