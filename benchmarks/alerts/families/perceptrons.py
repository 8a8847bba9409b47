"""Families of perceptrons: regression, classification, physics, distillation, click prediction."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.alerts.recipe import Options
from benchmarks.alerts.training import Batch, Training


def perceptron(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for into, out in pairwise(widths):
        layers += [nn.Linear(into, out), activation()]
    return nn.Sequential(*layers[:-1])


class Regression(Training):
    """Outputs of a fixed network, with noise."""

    name = "regression"
    options = Options(
        batches=(1, 8, 32, 64),
        depths=(1, 2, 3, 4),
        optimizers=("sgd", "momentum", "adam", "adamw", "adagrad", "adafactor", "muon"),
        precisions=("float32", "float32", "bfloat16", "scaler"),
        habits=("", "", "", "short_batches", "resumed", "resumed_anew", "thawed", "summed"),
    )

    def build(self) -> None:
        width, depth = self.recipe.width, self.recipe.depth
        self.teacher = perceptron(12, 24, 4, activation=nn.Tanh).requires_grad_(False)
        self.model = perceptron(12, *[width] * depth, 4)

    def batch(self, step: int, rank: int) -> Batch:
        inputs = torch.randn(self.samples(step), 12)
        outputs = self.teacher(inputs)
        return inputs, outputs + 0.1 * torch.randn_like(outputs)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.model(batch[0]).float(), batch[1].float())


class Saturating(Training):
    """Classification by a deep tanh network, with neither residuals nor normalisation."""

    name = "saturating"
    is_left_out = True
    options = Options(depths=(3, 4, 5), optimizers=("sgd", "momentum", "adam", "rmsprop", "muon"))

    def build(self) -> None:
        width, depth = self.recipe.width, self.recipe.depth
        self.teacher = perceptron(10, 24, 5, activation=nn.Tanh).requires_grad_(False)
        self.model = perceptron(10, *[width] * depth, 5, activation=nn.Tanh)

    def batch(self, step: int, rank: int) -> Batch:
        inputs = torch.randn(self.samples(step), 10)
        return inputs, self.teacher(inputs).argmax(1)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]).float(), batch[1])


class _ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = perceptron(width, 2 * width, width, activation=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inner(self.norm(x))
        return result


class Residual(Training):
    """Classification of rings by a residual network with layer normalisation."""

    name = "residual"
    options = Options(precisions=("float32", "autocast", "scaler"))

    def build(self) -> None:
        width, depth = self.recipe.width, self.recipe.depth
        blocks = [_ResidualBlock(width) for _ in range(depth)]
        self.model = nn.Sequential(nn.Linear(8, width), *blocks, nn.Linear(width, 4))

    def batch(self, step: int, rank: int) -> Batch:
        inputs = torch.randn(self.samples(step), 8)
        labels = (inputs.square().sum(1) / 4).floor().clamp(max=3).long()
        return inputs, labels

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]).float(), batch[1])


class Physics(Training):
    """A network that solves u'' = -k^2 sin(kx): gradients of its second derivative."""

    name = "physics"
    is_left_out = True
    options = Options(
        optimizers=("adam", "adamw", "muon"),
        precisions=("float32",),
        batches=(16, 32, 64),
        rate=0.7,
    )

    def build(self) -> None:
        width, depth = self.recipe.width, self.recipe.depth
        self.model = perceptron(1, *[width] * depth, 1, activation=nn.Tanh)
        self.wave = 1.0 + 2.0 * float(torch.rand(()))

    def batch(self, step: int, rank: int) -> Batch:
        return (3.0 * torch.rand(self.samples(step), 1),)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        x = batch[0].detach().requires_grad_()
        u = self.model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        wanted = -(self.wave**2) * torch.sin(self.wave * x.detach())
        ends = torch.tensor([[0.0], [3.0]])
        at_ends = self.model(ends) - torch.sin(self.wave * ends)
        loss: Tensor = (bend - wanted).square().mean() + 10.0 * at_ends.square().mean()
        return loss


class Distillation(Training):
    """Two views and a slow copy of the network as its own teacher, without labels."""

    name = "distillation"
    is_left_out = True
    options = Options(optimizers=("momentum", "adam", "adamw"), batches=(16, 32, 64))

    def build(self) -> None:
        width = self.recipe.width
        self.encoder = perceptron(12, *[width] * self.recipe.depth, 8)
        self.predictor = perceptron(8, 16, 8)
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.model = nn.ModuleDict({"encoder": self.encoder, "predictor": self.predictor})
        self.mixing = torch.randn(5, 12)

    def batch(self, step: int, rank: int) -> Batch:
        hidden = torch.randn(self.samples(step), 5) @ self.mixing
        return hidden + 0.3 * torch.randn_like(hidden), hidden + 0.3 * torch.randn_like(hidden)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        predicted = self.predictor(self.encoder(batch[0])).float()
        wanted = self.target(batch[1]).float()
        return 1.0 - nn.functional.cosine_similarity(predicted, wanted).mean()

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        super().after_step(step)
        online = self.encoder.parameters()
        for slow, fast in zip(self.target.parameters(), online, strict=True):
            slow.lerp_(fast, 0.01)


_FIELDS = 5
_ROWS = 120


class _ClickModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(_ROWS, 6) for _ in range(_FIELDS))
        self.optional = nn.Embedding(20, 6)
        self.top = perceptron(6 * (_FIELDS + 1), width, 1)

    def forward(self, fields: Tensor, optional: Tensor) -> Tensor:
        known = [table(fields[:, place]) for place, table in enumerate(self.tables)]
        given = (optional >= 0).float().unsqueeze(1) * self.optional(optional.clamp(min=0))
        logits: Tensor = self.top(torch.cat([*known, given], 1)).squeeze(1)
        return logits


class Click(Training):
    """Click prediction: rare categories, and an optional field that is mostly empty."""

    name = "click"
    options = Options(
        optimizers=("adagrad", "adagrad", "adam", "momentum"), batches=(8, 32, 64), worlds=(1, 1, 4)
    )

    def build(self) -> None:
        self.model = _ClickModel(self.recipe.width)
        self.truth = torch.randn(_FIELDS, _ROWS)

    def batch(self, step: int, rank: int) -> Batch:
        count = self.samples(step)
        fields = (torch.rand(count, _FIELDS) ** 4 * _ROWS).long()
        optional = torch.where(torch.rand(count) < 0.03, torch.randint(20, (count,)), -1)
        score = self.truth[torch.arange(_FIELDS), fields].sum(1)
        return fields, optional, (torch.rand(count) < score.sigmoid()).float()

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        fields, optional, clicked = batch
        logits = self.model(fields, optional).float()
        return nn.functional.binary_cross_entropy_with_logits(logits, clicked)
