"""A family on graphs: message passing between nodes of random communities."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.alerts.recipe import Options
from benchmarks.alerts.training import Batch, Training

_NODES = 16
_COMMUNITIES = 3


class _GraphModel(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, _COMMUNITIES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.first(nodes).relu()
        for layer in self.layers:
            x = layer(torch.cat([x, edges @ x], -1)).relu()
        logits: Tensor = self.head(x)
        return logits


class Communities(Training):
    """Nodes of random graphs are sorted into the communities that made their edges."""

    name = "communities"
    is_left_out = True
    options = Options(batches=(4, 8, 16), precisions=("float32",))

    def build(self) -> None:
        self.model = _GraphModel(self.recipe.width, self.recipe.depth)

    def batch(self, step: int, rank: int) -> Batch:
        count = self.samples(step)
        labels = torch.randint(_COMMUNITIES, (count, _NODES))
        is_same = labels.unsqueeze(1) == labels.unsqueeze(2)
        edges = (torch.rand(is_same.shape) < torch.where(is_same, 0.6, 0.1)).float()
        edges = edges / edges.sum(-1, keepdim=True).clamp(min=1.0)
        hints = nn.functional.one_hot(labels, 4).float() + torch.randn(count, _NODES, 4)
        return hints, edges, labels

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        nodes, edges, labels = batch
        logits = self.model(nodes, edges)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
