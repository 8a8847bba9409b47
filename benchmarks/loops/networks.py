"""Tiny networks and batches for the loops, the same in every trial."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 8


class Block(nn.Module):
    """Two layers beside a residual connection."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, width) for (batch, width)."""
        return x + self.down(torch.tanh(self.up(x)))  # type: ignore[no-any-return]  # of a module


class Network(nn.Module):
    """Stem, blocks, head. The head is registered first: the order of use is another."""

    def __init__(self, width: int = WIDTH, num_blocks: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(width, 1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.stem = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, 1) for (batch, width)."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]  # of a module


def batch(step: int, rank: int = 0, micro: int = 0, size: int = 4) -> tuple[Tensor, Tensor]:
    """Return inputs (size, WIDTH) and targets (size, 1), the same whenever asked for."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + micro)
    x = torch.randn(size, WIDTH, generator=generator)
    return x, x.sum(1, keepdim=True) / WIDTH


def loss_of(network: nn.Module, step: int, rank: int = 0, micro: int = 0) -> Tensor:
    """Return the mean squared error of a batch."""
    x, y = batch(step, rank, micro)
    return nn.functional.mse_loss(network(x), y)
