"""Generative models on points and pictures: GAN, VAE, diffusion; and contrastive learning."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from benchmarks.alerts.training import Batch, Training, warm_up_cosine
from benchmarks.alerts.workloads.mlp import perceptron


def gaussians(count: int, noise: float = 0.1) -> Tensor:
    """Draw points around eight places on a circle."""
    angle = torch.randint(8, (count,)) * (math.pi / 4)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + noise * torch.randn(count, 2)


class Gan(Training):
    """Generator and discriminator, which step at the same time."""

    name = "gan"
    about = "GAN on 8 Gaussians, Adam"

    def build(self) -> None:
        self.generator, self.discriminator = perceptron(4, 24, 24, 2), perceptron(2, 24, 24, 1)
        self.model = nn.ModuleDict(
            {"generator": self.generator, "discriminator": self.discriminator}
        )
        self.optimizers = [
            torch.optim.Adam(self.model.parameters(), lr=1e-3, betas=(0.5, 0.999), fused=True)
        ]

    def batch(self, step: int, rank: int) -> Batch:
        return gaussians(32), torch.randn(32, 4)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        real, noise = batch
        discriminator = self.discriminator
        fake = self.generator(noise)
        judged = discriminator(torch.cat([real, fake.detach()])).squeeze(1)
        truth = torch.cat([torch.ones(32), torch.zeros(32)])
        criterion = nn.functional.binary_cross_entropy_with_logits
        fixed = {name: each.detach() for name, each in discriminator.named_parameters()}
        fooled = torch.func.functional_call(discriminator, fixed, (fake,)).squeeze(1)
        loss: Tensor = criterion(judged, truth) + criterion(fooled, torch.ones(32))
        return loss


class Vae(Training):
    """Summed loss, and a weight of the KL term that rises."""

    name = "vae"
    about = "VAE on points in 8 dimensions, summed loss, KL warm-up, Adam"

    def build(self) -> None:
        self.mixing = torch.randn(2, 8)
        self.encoder, self.decoder = perceptron(8, 24, 6), perceptron(3, 24, 8)
        self.model = nn.ModuleDict({"encoder": self.encoder, "decoder": self.decoder})
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        return (gaussians(32) @ self.mixing + 0.1 * torch.randn(32, 8), torch.randn(32, 3))

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        inputs, noise = batch
        mean, log_variance = self.encoder(inputs).chunk(2, 1)
        made = self.decoder(mean + noise * (0.5 * log_variance).exp())
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum()
        weight = min(1.0, 3 * step / self.steps)
        loss: Tensor = nn.functional.mse_loss(made, inputs, reduction="sum") + weight * divergence
        return loss


class Diffusion(Training):
    """Predict the noise in points."""

    name = "diffusion"
    about = "diffusion on 8 Gaussians, AdamW, warm-up and cosine, clip 1"
    worlds = (1, 2)
    clip = 1.0

    def build(self) -> None:
        self.model = perceptron(4, 32, 32, 32, 2, activation=nn.SiLU)
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=2e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        return gaussians(32), torch.randn(32, 2), torch.rand(32, 1)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        points, noise, time = batch
        signal = torch.cos(0.5 * math.pi * time)
        noisy = signal * points + (1 - signal.square()).clamp(min=0).sqrt() * noise
        given = torch.cat([noisy, time, torch.sin(6 * time)], 1)
        return nn.functional.mse_loss(self.model(given), noise)

    def schedule(self, done: float) -> float:
        return warm_up_cosine(done)


class Contrastive(Training):
    """Two towers that find each other's views."""

    name = "contrastive"
    about = "contrastive learning, two towers, learnt temperature, AdamW"
    worlds = (1, 2)

    def build(self) -> None:
        self.views = torch.randn(2, 6, 12)
        self.left, self.right = perceptron(12, 24, 8), perceptron(12, 24, 8)
        self.model = nn.ModuleDict({"left": self.left, "right": self.right})
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        hidden = torch.randn(24, 6)
        left, right = (hidden @ view + 0.5 * torch.randn(24, 12) for view in self.views)
        return left, right

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        normalize = nn.functional.normalize
        left = normalize(self.left(batch[0]), dim=1)
        right = normalize(self.right(batch[1]), dim=1)
        logits = left @ right.T / 0.1
        same = torch.arange(len(logits))
        entropy = nn.functional.cross_entropy
        return 0.5 * (entropy(logits, same) + entropy(logits.T, same))
