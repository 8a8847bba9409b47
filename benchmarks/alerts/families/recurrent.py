"""Recurrent families: language, counting in longer and longer sequences, frequencies."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.alerts.families.language import VOCABULARY, sentences
from benchmarks.alerts.recipe import Options
from benchmarks.alerts.training import Batch, Training

_OPTIONS = Options(
    widths=(16, 20, 24),
    depths=(1,),
    batches=(4, 8, 16),
    optimizers=("adam", "adamw", "rmsprop", "momentum"),
    precisions=("float32",),
    clips=(0.5, 1.0, 1.0, None),
    speed=0.8,
)


class _Tagger(nn.Module):
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
    options = _OPTIONS

    def build(self) -> None:
        self.model = _Tagger(self.recipe.width)

    def batch(self, step: int, rank: int) -> Batch:
        return (sentences(self.samples(step), 10),)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        logits = self.model(batch[0][:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())


class _Reader(nn.Module):
    """A recurrent layer whose last output counts."""

    def __init__(self, recurrent: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.head = nn.Linear(width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.recurrent(inputs)[0][:, -1])
        return outputs


class Counting(Training):
    """Marked numbers are added up; sequences get longer in the course of the run."""

    name = "counting"
    is_left_out = True
    options = _OPTIONS

    def build(self) -> None:
        width = self.recipe.width
        self.model = _Reader(nn.RNN(2, width, batch_first=True), width, 1)

    def batch(self, step: int, rank: int) -> Batch:
        done, count = step / self.steps, self.samples(step)
        length = 6 if done < 0.35 else 10 if done < 0.75 else 16
        values = torch.rand(count, length)
        marks = (torch.rand(count, length) < 2.0 / length).float()
        return torch.stack([values, marks], 2), (values * marks).sum(1)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.model(batch[0]).squeeze(1), batch[1])


class Frequencies(Training):
    """A gated recurrent network tells the frequency of a noisy wave."""

    name = "frequencies"
    is_left_out = True
    options = _OPTIONS

    def build(self) -> None:
        width = self.recipe.width
        self.model = _Reader(nn.GRU(1, width, batch_first=True), width, 4)

    def batch(self, step: int, rank: int) -> Batch:
        count = self.samples(step)
        labels = torch.randint(4, (count,))
        time = torch.arange(14).float()
        wave = torch.sin((0.4 + 0.4 * labels).unsqueeze(1) * time + 6.28 * torch.rand(count, 1))
        return (wave + 0.4 * torch.randn_like(wave)).unsqueeze(2), labels

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])
