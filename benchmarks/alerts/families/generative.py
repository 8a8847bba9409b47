"""Generative families on points: GAN, VAE, diffusion; and contrastive learning."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from benchmarks.alerts.families.perceptrons import perceptron
from benchmarks.alerts.recipe import Options
from benchmarks.alerts.training import Batch, Training

_OPTIONS = Options(optimizers=("adam", "adamw", "adamw", "rmsprop"), batches=(16, 32, 64))


def gaussians(count: int, noise: float = 0.1) -> Tensor:
    """Draw points around eight places on a circle."""
    angle = torch.randint(8, (count,)) * (math.pi / 4)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + noise * torch.randn(count, 2)


class Gan(Training):
    """Generator and discriminator, which step at the same time."""

    name = "gan"
    is_left_out = True
    loss_may_grow = True
    options = Options(
        optimizers=("gan_adam",),
        batches=(16, 32, 64),
        precisions=("float32",),
        habits=("", "", "short_batches", "resumed"),
    )

    def build(self) -> None:
        hidden = [self.recipe.width] * self.recipe.depth
        self.generator, self.discriminator = perceptron(4, *hidden, 2), perceptron(2, *hidden, 1)
        self.model = nn.ModuleDict(
            {"generator": self.generator, "discriminator": self.discriminator}
        )

    def batch(self, step: int, rank: int) -> Batch:
        count = self.samples(step)
        return gaussians(count), torch.randn(count, 4)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        real, noise = batch
        fake = self.generator(noise)
        judged = self.discriminator(torch.cat([real, fake.detach()])).squeeze(1)
        ones = torch.ones(len(real))
        criterion = nn.functional.binary_cross_entropy_with_logits
        fixed = {name: each.detach() for name, each in self.discriminator.named_parameters()}
        fooled = torch.func.functional_call(self.discriminator, fixed, (fake,)).squeeze(1)
        truth = torch.cat([ones, torch.zeros(len(real))])
        loss: Tensor = criterion(judged, truth) + criterion(fooled, ones)
        return loss


class Minimax(Training):
    """A hinge critic and the maker of its points: each loss falls where the other one rises."""

    name = "minimax"
    loss_may_grow = True
    options = Options(
        optimizers=("adam", "adamw", "rmsprop"),
        batches=(16, 32, 64),
        precisions=("float32",),
        habits=("", "", "short_batches"),
        rate=0.5,
    )

    def build(self) -> None:
        hidden = [self.recipe.width] * self.recipe.depth
        self.maker, self.critic = perceptron(3, *hidden, 1), perceptron(1, *hidden, 1)
        self.model = nn.ModuleDict({"maker": self.maker, "critic": self.critic})

    def batch(self, step: int, rank: int) -> Batch:
        count = self.samples(step)
        places = torch.randint(3, (count, 1)).float() * 2 - 2
        return places + 0.2 * torch.randn(count, 1), torch.randn(count, 3)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        real, noise = batch
        made = self.maker(noise)
        fixed = {name: each.detach() for name, each in self.critic.named_parameters()}
        judged = torch.func.functional_call(self.critic, fixed, (made,))
        hinge = torch.relu(1 - self.critic(real)) + torch.relu(1 + self.critic(made.detach()))
        loss: Tensor = hinge.mean() + nn.functional.softplus(-judged.mean())
        return loss


class Vae(Training):
    """A summed loss, and a weight of the KL term that rises."""

    name = "vae"
    options = _OPTIONS

    def build(self) -> None:
        self.mixing = torch.randn(2, 8)
        hidden = [self.recipe.width] * self.recipe.depth
        self.encoder, self.decoder = perceptron(8, *hidden, 6), perceptron(3, *hidden, 8)
        self.model = nn.ModuleDict({"encoder": self.encoder, "decoder": self.decoder})

    def batch(self, step: int, rank: int) -> Batch:
        count = self.samples(step)
        points = gaussians(count) @ self.mixing + 0.1 * torch.randn(count, 8)
        return points, torch.randn(count, 3)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        inputs, noise = batch
        mean, log_variance = self.encoder(inputs).float().chunk(2, 1)
        made = self.decoder(mean + noise * (0.5 * log_variance).exp()).float()
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum()
        weight = min(1.0, 3 * step / self.steps)
        loss: Tensor = nn.functional.mse_loss(made, inputs, reduction="sum") + weight * divergence
        return loss


class Diffusion(Training):
    """The noise in points is predicted."""

    name = "diffusion"
    is_left_out = True
    options = _OPTIONS

    def build(self) -> None:
        hidden = [self.recipe.width] * (self.recipe.depth + 1)
        self.model = perceptron(4, *hidden, 2, activation=nn.SiLU)

    def batch(self, step: int, rank: int) -> Batch:
        count = self.samples(step)
        return gaussians(count), torch.randn(count, 2), torch.rand(count, 1)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        points, noise, time = batch
        signal = torch.cos(0.5 * math.pi * time)
        noisy = signal * points + (1 - signal.square()).clamp(min=0).sqrt() * noise
        given = torch.cat([noisy, time, torch.sin(6 * time)], 1)
        return nn.functional.mse_loss(self.model(given).float(), noise)


class Contrastive(Training):
    """Two towers that find each other's views."""

    name = "contrastive"
    is_left_out = True
    options = _OPTIONS

    def build(self) -> None:
        self.views = torch.randn(2, 6, 12)
        hidden = [self.recipe.width] * self.recipe.depth
        self.left, self.right = perceptron(12, *hidden, 8), perceptron(12, *hidden, 8)
        self.model = nn.ModuleDict({"left": self.left, "right": self.right})

    def batch(self, step: int, rank: int) -> Batch:
        count = max(4, self.samples(step))
        hidden = torch.randn(count, 6)
        left, right = (hidden @ view + 0.5 * torch.randn(count, 12) for view in self.views)
        return left, right

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        normalize = nn.functional.normalize
        left = normalize(self.left(batch[0]).float(), dim=1)
        right = normalize(self.right(batch[1]).float(), dim=1)
        logits = left @ right.T / 0.1
        same = torch.arange(len(logits))
        entropy = nn.functional.cross_entropy
        return 0.5 * (entropy(logits, same) + entropy(logits.T, same))
