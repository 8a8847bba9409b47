"""Transformers without residuals, in other precision, with adapters and with experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from benchmarks.alerts.training import Batch, Training, one_cycle, restarts, warm_up_cosine
from benchmarks.alerts.workloads.cnn import pictures
from benchmarks.alerts.workloads.transformer import (
    VOCABULARY,
    Block,
    Gpt,
    LanguageModel,
    next_token_loss,
    sentences,
)


class Plain(Gpt):
    """Neither residuals nor normalisation: gradients shrink with depth."""

    name = "gpt_plain"
    about = "transformer without residuals and normalisation, Adam, warm-up and cosine"
    worlds = (1,)
    clip = None

    def build(self) -> None:
        self.model = LanguageModel(16, 2, norm=False, residual=False)
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=2e-3, fused=True)]


class Unnormalised(Gpt):
    """Residuals, and no normalisation."""

    name = "gpt_no_norm"
    about = "transformer with residuals, without normalisation, SGD momentum, clip 1, OneCycle"
    worlds = (2, 1)
    clip = 1.0

    def build(self) -> None:
        self.model = LanguageModel(16, 2, norm=False)
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)]

    def schedule(self, done: float) -> float:
        return one_cycle(done)


class Adafactored(Gpt):
    """Adafactor, bfloat16 autocast."""

    name = "gpt_adafactor"
    about = "transformer, bfloat16 autocast, Adafactor"
    worlds = (1,)
    clip = None
    default_steps = 1200

    def build(self) -> None:
        self.model = LanguageModel(16, 1)
        self.optimizers = [torch.optim.Adafactor(self.model.parameters(), lr=0.01)]

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return next_token_loss(self.model, batch[0])


class GptScaled(Gpt):
    """float16 autocast under a GradScaler."""

    name = "gpt_scaler"
    about = "transformer, float16 autocast, GradScaler, AdamW, clip 1"
    worlds = (2, 1)

    def build(self) -> None:
        self.model = LanguageModel(16, 1)
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=3e-3)]
        self.scaler = GradScaler("cpu", init_scale=2.0**22, growth_interval=300)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        tokens = batch[0]
        with torch.autocast("cpu", torch.float16):
            logits = self.model(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


class _Adapted(nn.Module):
    """A frozen linear layer, and a product of two thin matrices beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + 2.0 * self.lora_b(self.lora_a(x))
        return adapted


class Lora(Gpt):
    """Fine-tuning with adapters on another vocabulary's statistics; each last batch is short."""

    name = "gpt_lora"
    about = "transformer, LoRA adapters on a frozen base, AdamW, short last batches"
    worlds = (1,)
    clip = None

    def build(self) -> None:
        model = LanguageModel(24, 2)
        model.requires_grad_(False)
        for block in model.blocks:
            assert isinstance(block, Block)
            block.attention.qkv = _Adapted(block.attention.qkv)  # type: ignore[assignment]
            block.attention.out = _Adapted(block.attention.out)  # type: ignore[assignment]
        model.head.requires_grad_(True)
        self.model = model
        trained = [each for each in model.parameters() if each.requires_grad]
        self.optimizers = [torch.optim.AdamW(trained, lr=3e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        return (sentences(2 if step % 25 == 24 else 12, 10),)


class _Experts(nn.Module):
    """A router that sends each token to one of some experts."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        weight, chosen = self.router(flat).softmax(-1).max(-1)
        made = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero().squeeze(1)
            made = made.index_add(0, mine, expert(flat[mine]))  # all zeros where none is sent
        result: Tensor = x + (weight.unsqueeze(1) * made).view_as(x)
        return result


class MixtureOfExperts(Training):
    """Experts to which no token is sent in a step have a gradient of zeros."""

    name = "moe"
    about = "top-1 mixture of 6 experts, language model, AdamW; experts idle at times"
    default_steps = 2000

    def build(self) -> None:
        self.model = nn.Sequential(
            nn.Embedding(VOCABULARY, 16),
            _Experts(16, 6),
            nn.LayerNorm(16),
            nn.Linear(16, VOCABULARY),
        )
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=3e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        return (sentences(3, 8),)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return next_token_loss(self.model, batch[0])

    def schedule(self, done: float) -> float:
        return warm_up_cosine(done)


class _Vit(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.block = Block(width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.norm(self.block(patches)).mean(1))
        return logits


class VitOnNoise(Training):
    """Learn a small set by heart: norms fall by orders of magnitude, with bursts."""

    name = "vit_noise"
    about = "vision transformer, memorises 96 noise pictures, AdamW"

    def build(self) -> None:
        self.model = _Vit(16, 4)
        self.inputs, self.labels = torch.randn(96, 1, 8, 8), torch.randint(4, (96,))
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=2e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        chosen = torch.randint(96, (16,))
        return self.inputs[chosen], self.labels[chosen]

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])


class CnnRestarted(Training):
    """Group normalisation and restarts."""

    name = "cnn_groupnorm"
    about = "CNN with group normalisation, bfloat16 autocast, AdamW, restarts (SGDR)"
    worlds = (2, 1)
    default_steps = 2000

    def build(self) -> None:
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.GELU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1),
            nn.GroupNorm(3, 12),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(12 * 16, 4),
        )
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=3e-3, fused=True)]

    def batch(self, step: int, rank: int) -> Batch:
        return pictures(16)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(batch[0])
        return nn.functional.cross_entropy(logits.float(), batch[1])

    def schedule(self, done: float) -> float:
        return restarts(done)
