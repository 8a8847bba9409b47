"""Click prediction: tables of categories of which many are rare, trained with Adagrad."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.alerts.training import Batch, Training
from benchmarks.alerts.workloads.mlp import perceptron

_FIELDS = 5
_ROWS = 120


class _ClickModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(_ROWS, 6) for _ in range(_FIELDS))
        self.optional = nn.Embedding(20, 6)
        self.top = perceptron(6 * (_FIELDS + 1), 24, 1)

    def forward(self, fields: Tensor, optional: Tensor) -> Tensor:
        known = [table(fields[:, place]) for place, table in enumerate(self.tables)]
        given = (optional >= 0).float().unsqueeze(1) * self.optional(optional.clamp(min=0))
        logits: Tensor = self.top(torch.cat([*known, given], 1)).squeeze(1)
        return logits


class Click(Training):
    """A batch touches few rows of each table, and of the optional field often none."""

    name = "click"
    about = "click model, rare categories, a field that is mostly empty, Adagrad"
    worlds = (4, 1, 2, 1)

    def build(self) -> None:
        self.model = _ClickModel()
        self.truth = torch.randn(_FIELDS, _ROWS)
        self.optimizers = [torch.optim.Adagrad(self.model.parameters(), lr=0.03)]

    def batch(self, step: int, rank: int) -> Batch:
        fields = (torch.rand(32, _FIELDS) ** 4 * _ROWS).long()
        optional = torch.where(torch.rand(32) < 0.03, torch.randint(20, (32,)), -1)
        score = sum(self.truth[place][fields[:, place]] for place in range(_FIELDS))
        assert isinstance(score, Tensor)
        return fields, optional, (torch.rand(32) < score.sigmoid()).float()

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        fields, optional, clicked = batch
        logits = self.model(fields, optional)
        return nn.functional.binary_cross_entropy_with_logits(logits, clicked)
