"""Watches the gains all through a training run.

    python docs/examples/gains_training.py

The monitor enqueues its work at each backward pass; only a step that prints waits for the numbers.
`reset()` after each step keeps the strict mode content: a forgotten one is an error, not a mix of
two steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradwatch import GradientGainMonitor

WIDTH = 32
DEPTH = 6
STEPS = 200
PRINT_EVERY = 50


class Residual(nn.Module):
    """A two-layer perceptron added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same shape."""
        return x + self.mlp(x)  # type: ignore[no-any-return]  # modules return Any


def main() -> None:
    """Fit the sine of the inputs' sum; print now and then."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Residual() for _ in range(DEPTH)))
    model = nn.Sequential(blocks, nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with GradientGainMonitor(blocks) as monitor:
        for step in range(STEPS + 1):
            x = torch.randn(64, WIDTH)
            loss = (model(x) - x.sum(dim=1, keepdim=True).sin()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % PRINT_EVERY == 0:
                stats = monitor.summary_stats()
                print(
                    f"step {step:3d}  loss {loss.item():.3f}  mean gain {stats['mean_gain']:.3f}  "
                    f"max gain {stats['max_gain']:.3f}  healthy {stats['num_healthy']}/{DEPTH - 1}"
                )
            monitor.reset()


if __name__ == "__main__":
    main()
