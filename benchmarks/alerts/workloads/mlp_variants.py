"""Perceptrons whose losses, batches, precision or rates are particular."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from benchmarks.alerts.training import Batch, Training, restarts, warm_up_cosine
from benchmarks.alerts.workloads.mlp import Mlp, perceptron

_EPOCH = 25


class BatchOfOne(Mlp):
    """One sample a step: norms go up and down by orders of magnitude."""

    name = "mlp_batch_1"
    about = "MLP regression, batch size 1, SGD momentum"
    worlds = (1,)
    batch_size = 1
    noise = 0.0

    def build(self) -> None:
        super().build()
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=1e-2, momentum=0.9)]

    def schedule(self, done: float) -> float:
        del done
        return 1.0


class SummedLoss(Mlp):
    """The loss is a sum over samples: norms are large by nature; each last batch is short."""

    name = "mlp_summed_loss"
    about = "MLP regression, summed loss, Adam, short last batches"
    worlds = (2, 4, 1)
    batch_size = 64

    def build(self) -> None:
        super().build()
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=2e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        inputs, outputs = super().batch(step, rank)
        count = 9 if step % _EPOCH == _EPOCH - 1 else self.batch_size
        return inputs[:count], 20 * outputs[:count]

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets, reduction="sum")

    def schedule(self, done: float) -> float:
        return warm_up_cosine(done, last=0.02)


class Saturating(Mlp):
    """Deep, tanh, neither residuals nor normalisation."""

    name = "mlp_saturating"
    about = "6-layer tanh MLP, classification, SGD"
    worlds = (1,)

    def build(self) -> None:
        self.teacher = perceptron(10, 24, 5, activation=nn.Tanh).requires_grad_(False)
        self.model = perceptron(10, 24, 24, 24, 24, 24, 5, activation=nn.Tanh)
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.1)]

    def batch(self, step: int, rank: int) -> Batch:
        inputs = torch.randn(32, 10)
        return inputs, self.teacher(inputs).argmax(1)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.model(inputs), labels)

    def schedule(self, done: float) -> float:
        del done
        return 1.0


class ShortPrecision(Mlp):
    """Weights and gradients are bfloat16."""

    name = "mlp_bf16"
    about = "MLP regression, bfloat16 weights and gradients, SGD, restarts (SGDR)"
    worlds = (1, 1, 2)

    def build(self) -> None:
        super().build()
        self.model = self.model.bfloat16()
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)]

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs.bfloat16()).float(), targets)

    def schedule(self, done: float) -> float:
        return restarts(done)


class Scaled(Mlp):
    """float16 autocast under a GradScaler: it skips steps while it finds its scale, and later."""

    name = "mlp_scaler"
    about = "MLP regression, float16 autocast, GradScaler, AdamW"
    worlds = (1, 2)

    def build(self) -> None:
        super().build()
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=2e-3)]
        self.scaler = GradScaler("cpu", init_scale=2.0**28, growth_interval=250)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        inputs, targets = batch
        with torch.autocast("cpu", torch.float16):
            outputs = self.model(inputs)
        return nn.functional.mse_loss(outputs.float(), targets)

    def schedule(self, done: float) -> float:
        return warm_up_cosine(done)


class MuonTrained(Mlp):
    """Matrices only, so that Muon trains all of them."""

    name = "mlp_muon"
    about = "MLP regression without biases, Muon"
    worlds = (1,)
    default_steps = 2000

    def build(self) -> None:
        super().build()
        self.model = nn.Sequential(
            nn.Linear(12, 32, bias=False),
            nn.ReLU(),
            nn.Linear(32, 32, bias=False),
            nn.ReLU(),
            nn.Linear(32, 4, bias=False),
        )
        self.optimizers = [torch.optim.Muon(self.model.parameters(), lr=0.01, ns_steps=3)]

    def schedule(self, done: float) -> float:
        return warm_up_cosine(done)


class Jumps(Mlp):
    """The rate is set anew by hand, up and down, as people do."""

    name = "mlp_rate_jumps"
    about = "MLP regression, SGD, rate set to x3, x1/5 and x2 by hand"
    worlds = (1,)

    def build(self) -> None:
        super().build()
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)]

    def schedule(self, done: float) -> float:
        return 1.0 if done < 0.2 else 3.0 if done < 0.4 else 0.6 if done < 0.75 else 1.2


class Resumed(Mlp):
    """Stopped and resumed: once with the state of the optimizer, in other seeds without it."""

    name = "mlp_resumed"
    about = "MLP regression, Adam, resumed twice, every other seed without optimizer state"
    worlds = (2, 1)
    resumes_at = (0.25, 0.8)

    def build(self) -> None:
        super().build()
        self.keeps_optimizer_state = self.seed % 2 == 0
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=2e-3, fused=True)]


class Thawed(Training):
    """The first layers are frozen, and thawed on the way: layers come to a run that goes on."""

    name = "mlp_thawed"
    about = "MLP regression, AdamW, first layers frozen until a tenth of the run"
    worlds = (1,)

    def build(self) -> None:
        self.teacher = perceptron(12, 24, 4, activation=nn.Tanh).requires_grad_(False)
        self.model = perceptron(12, 32, 32, 4, activation=nn.GELU)
        self.model[0].requires_grad_(False)
        self.model[2].requires_grad_(False)
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=2e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        if step == round(0.1 * self.steps):
            self.model.requires_grad_(True)
        inputs = torch.randn(32, 12)
        return inputs, self.teacher(inputs) + 0.1 * torch.randn(32, 4)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])
