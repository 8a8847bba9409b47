"""Families on pictures: convolutions, patches, mixers, and a denoiser."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.alerts.families.language import Block
from benchmarks.alerts.families.perceptrons import perceptron
from benchmarks.alerts.recipe import Options
from benchmarks.alerts.training import Batch, Training

CLASSES = 4
_SIDE = 8


def gratings(count: int) -> tuple[Tensor, Tensor]:
    """Draw pictures of gratings in one of four directions, under noise; and their classes."""
    labels = torch.randint(CLASSES, (count,))
    along = torch.linspace(-1, 1, _SIDE)
    rows, columns = along.view(1, _SIDE, 1), along.view(1, 1, _SIDE)
    angle = (labels * (torch.pi / CLASSES)).view(-1, 1, 1)
    phase = torch.rand(count, 1, 1) * 6.28
    wave = torch.sin(5 * (rows * angle.cos() + columns * angle.sin()) + phase)
    return (wave + 0.7 * torch.randn_like(wave)).unsqueeze(1), labels


class _Pictures(Training):
    """Classification of gratings."""

    options = Options(batches=(8, 16, 32), widths=(8, 12, 16))

    def batch(self, step: int, rank: int) -> Batch:
        return gratings(max(2, self.samples(step)))

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]).float(), batch[1])


class CnnBatchNorm(_Pictures):
    """Convolutions with batch normalisation."""

    name = "cnn_batchnorm"

    def build(self) -> None:
        width = self.recipe.width
        layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)]
        for _ in range(self.recipe.depth - 1):
            layers += [nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(width)]
        layers += [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * 16, CLASSES)]
        self.model = nn.Sequential(*layers)


class CnnGroupNorm(_Pictures):
    """Strided convolutions with group normalisation."""

    name = "cnn_groupnorm"

    def build(self) -> None:
        width = self.recipe.width
        self.model = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.GroupNorm(2, width),
            nn.GELU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.GroupNorm(4, width),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(width * 16, CLASSES),
        )


class _Vit(nn.Module):
    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.blocks = nn.Sequential(*(Block(width, is_causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.norm(self.blocks(patches)).mean(1))
        return logits


class VitOnNoise(_Pictures):
    """A small set learnt by heart: norms fall by orders of magnitude, with bursts."""

    name = "vit_noise"
    is_left_out = True
    options = Options(batches=(8, 16, 32), widths=(16, 24), depths=(1, 2), speed=0.8)

    def build(self) -> None:
        self.model = _Vit(self.recipe.width, self.recipe.depth, CLASSES)
        self.inputs, self.labels = torch.randn(96, 1, 8, 8), torch.randint(CLASSES, (96,))

    def batch(self, step: int, rank: int) -> Batch:
        chosen = torch.randint(96, (self.samples(step),))
        return self.inputs[chosen], self.labels[chosen]


class _MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = perceptron(patches, 2 * patches, patches, activation=nn.GELU)
        self.channels = perceptron(width, 2 * width, width, activation=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        result: Tensor = x + self.channels(self.norm2(x))
        return result


class _Mixer(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.blocks = nn.Sequential(*(_MixerBlock(16, width) for _ in range(depth)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.patches(x).flatten(2).mT).mean(1))
        return logits


class Mixer(_Pictures):
    """Perceptrons over patches and over channels, in turns."""

    name = "mixer"
    is_left_out = True
    options = Options(
        batches=(8, 16, 32),
        widths=(12, 16, 24),
        depths=(1, 2),
        precisions=("float32", "autocast", "scaler"),
        speed=0.8,
    )

    def build(self) -> None:
        self.model = _Mixer(self.recipe.width, self.recipe.depth)


class _Hourglass(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.inner = nn.Conv2d(width, width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, 1, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        low = self.down(x).relu()
        made: Tensor = self.up(torch.cat([low, self.inner(low).relu()], 1))
        return made


class Denoiser(_Pictures):
    """An hourglass that takes noise off pictures."""

    name = "denoiser"
    is_left_out = True

    def build(self) -> None:
        self.model = _Hourglass(self.recipe.width)

    def batch(self, step: int, rank: int) -> Batch:
        clean, _ = gratings(self.samples(step))
        level = 2.0 * torch.rand(len(clean), 1, 1, 1)
        return clean + level * torch.randn_like(clean), clean

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.model(batch[0]).float(), batch[1])
