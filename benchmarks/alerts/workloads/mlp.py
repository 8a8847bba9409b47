"""A small multilayer perceptron that learns the function of another one."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from benchmarks.alerts.training import Batch, Training, step_decay


def perceptron(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for into, out in pairwise(widths):
        layers += [nn.Linear(into, out), activation()]
    return nn.Sequential(*layers[:-1])


class Mlp(Training):
    """Regression on the outputs of a fixed network, with noise."""

    name = "mlp"
    about = "MLP regression, SGD momentum, step decay"
    worlds: ClassVar[tuple[int, ...]] = (1, 4, 2, 1)
    default_steps = 4000
    batch_size = 32
    noise = 0.1

    def build(self) -> None:
        width = (24, 32, 48, 40)[self.seed % 4]
        self.teacher = perceptron(12, 24, 4, activation=nn.Tanh).requires_grad_(False)
        self.model = perceptron(12, width, width, 4)
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)]

    def batch(self, step: int, rank: int) -> Batch:
        inputs = torch.randn(self.batch_size, 12)
        outputs = self.teacher(inputs)
        return inputs, outputs + self.noise * torch.randn_like(outputs)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    def schedule(self, done: float) -> float:
        return step_decay(done)
