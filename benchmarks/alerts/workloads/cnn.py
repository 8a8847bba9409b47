"""A convolutional network with batch normalisation on small pictures of blobs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.alerts.training import Batch, Training, one_cycle

CLASSES = 4


def pictures(count: int, size: int = 8) -> tuple[Tensor, Tensor]:
    """Draw pictures of gratings in one of four directions, under noise; and their classes."""
    labels = torch.randint(CLASSES, (count,))
    along = torch.linspace(-1, 1, size)
    rows, columns = along.view(1, size, 1), along.view(1, 1, size)
    angle = (labels * (torch.pi / CLASSES)).view(-1, 1, 1)
    phase = torch.rand(count, 1, 1) * 6.28
    wave = torch.sin(5 * (rows * angle.cos() + columns * angle.sin()) + phase)
    return (wave + 0.7 * torch.randn_like(wave)).unsqueeze(1), labels


class Cnn(Training):
    """Classification, accumulated over two micro-batches."""

    name = "cnn_batchnorm"
    about = "CNN with batch normalisation, SGD momentum, OneCycle, accumulation 2"
    accumulate = 2
    default_steps = 2000

    def build(self) -> None:
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(12 * 16, CLASSES),
        )
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)]

    def batch(self, step: int, rank: int) -> Batch:
        return pictures(16)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.model(inputs), labels)

    def schedule(self, done: float) -> float:
        return one_cycle(done)
