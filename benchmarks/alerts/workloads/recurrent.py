"""An LSTM on the grammar, and an RNN that counts in longer and longer sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.alerts.training import Batch, Training, warm_up_cosine
from benchmarks.alerts.workloads.transformer import VOCABULARY, sentences


class _LstmModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return logits


class Lstm(Training):
    """Language modelling."""

    name = "lstm"
    about = "LSTM language model, Adam, clip 0.5, rare tokens"
    worlds = (2, 1)
    clip = 0.5
    default_steps = 2000

    def build(self) -> None:
        self.model = _LstmModel((16, 20, 24, 16)[self.seed % 4])
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=5e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        return (sentences(8, 10),)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        tokens = batch[0]
        logits = self.model(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def schedule(self, done: float) -> float:
        return warm_up_cosine(done)


class _RnnModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.rnn(inputs)[0][:, -1])
        return outputs


class RnnCounting(Training):
    """Add up the marked numbers of a sequence; sequences get longer in the course of the run."""

    name = "rnn_counting"
    about = "RNN, adding problem, curriculum of lengths 6, 10, 16, Adam, clip 1"
    clip = 1.0

    def build(self) -> None:
        self.model = _RnnModel(20)
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=2e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        done = step / self.steps
        length = 6 if done < 0.35 else 10 if done < 0.75 else 16
        values = torch.rand(16, length)
        marks = (torch.rand(16, length) < 2.0 / length).float()
        return torch.stack([values, marks], 2), (values * marks).sum(1)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        inputs, sums = batch
        return nn.functional.mse_loss(self.model(inputs).squeeze(1), sums)
