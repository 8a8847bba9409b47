"""Families on sequences of a grammar: transformers, adapters, experts, and masked tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.alerts.recipe import Options
from benchmarks.alerts.training import Batch, Training

VOCABULARY = 32
LENGTH = 12
_CAUSAL = Options(
    widths=(16, 24, 32),
    depths=(1, 2),
    batches=(4, 8, 12),
    optimizers=("adam", "adamw", "adamw", "adafactor", "rmsprop", "muon"),
    precisions=("float32", "float32", "autocast", "scaler"),
    speed=0.7,
)


def sentences(count: int, length: int = LENGTH) -> Tensor:
    """Draw sequences in which each token follows from the two before it, with noise.

    Tokens are as frequent as in language: few are common, many are rare.
    """
    others = (torch.rand(count, length) ** 3 * VOCABULARY).long().numpy()
    is_other = (torch.rand(count, length) < 0.15).numpy()
    tokens = others.copy()
    for place in range(2, length):
        follows = (3 * tokens[:, place - 1] + tokens[:, place - 2] + 1) % VOCABULARY
        tokens[:, place] = np.where(is_other[:, place], others[:, place], follows)
    return torch.from_numpy(tokens)


class _Attention(nn.Module):
    def __init__(self, width: int, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        q, k, v = self.qkv(x).view(count, length, 3, 2, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(count, length, width))
        return result


class Block(nn.Module):
    """Attention and a perceptron; with or without normalisation, residuals and dropout."""

    def __init__(
        self,
        width: int,
        *,
        is_causal: bool = True,
        norm: bool = True,
        residual: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.norm1 = nn.LayerNorm(width) if norm else nn.Identity()
        self.attention = _Attention(width, is_causal=is_causal)
        self.norm2 = nn.LayerNorm(width) if norm else nn.Identity()
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.dropout(self.attention(self.norm1(x)))
        x = x + attended if self.residual else attended
        made = self.dropout(self.mlp(self.norm2(x)))
        result: Tensor = x + made if self.residual else made
        return result


class _LanguageModel(nn.Module):
    def __init__(self, width: int, blocks: list[Block], *, norm: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, width)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Gpt(Training):
    """Language modelling as usual, with residuals, normalisation and dropout."""

    name = "gpt"
    options = _CAUSAL
    norm = True
    residual = True

    def build(self) -> None:
        width, dropout = self.recipe.width, 0.1 * (self.recipe.seed % 2)
        blocks = [
            Block(width, norm=self.norm, residual=self.residual, dropout=dropout)
            for _ in range(self.recipe.depth)
        ]
        self.model = _LanguageModel(width, blocks, norm=self.norm)

    def batch(self, step: int, rank: int) -> Batch:
        return (sentences(self.samples(step)),)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        logits = self.model(batch[0][:, :-1]).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())


class GptWithoutNorm(Gpt):
    """Residuals without normalisation."""

    name = "gpt_no_norm"
    norm = False


class GptPlain(Gpt):
    """Neither residuals nor normalisation: gradients shrink with depth."""

    name = "gpt_plain"
    norm = residual = False


class MaskedTokens(Gpt):
    """Masked tokens are filled in from both sides."""

    name = "masked_tokens"
    is_left_out = True

    def build(self) -> None:
        width = self.recipe.width
        blocks = [Block(width, is_causal=False) for _ in range(self.recipe.depth)]
        self.model = _LanguageModel(width, blocks)

    def batch(self, step: int, rank: int) -> Batch:
        tokens = sentences(self.samples(step))
        is_masked = torch.rand(tokens.shape) < 0.25
        is_masked[:, 3] = True  # at least one, for a mean over none is NaN
        return torch.where(is_masked, VOCABULARY, tokens), torch.where(is_masked, tokens, -100)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        logits = self.model(batch[0]).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten())


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
    """Adapters beside frozen weights; only they and the head are trained."""

    name = "lora"
    is_left_out = True

    def build(self) -> None:
        super().build()
        self.model.requires_grad_(False)
        for block in self.model.blocks:  # type: ignore[union-attr]
            assert isinstance(block, Block)
            block.attention.qkv = _Adapted(block.attention.qkv)  # type: ignore[assignment]
            block.attention.out = _Adapted(block.attention.out)  # type: ignore[assignment]
        self.model.head.requires_grad_(True)


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


class MixtureOfExperts(Gpt):
    """Experts to which no token is sent in a step have a gradient of zeros."""

    name = "experts"
    options = Options(
        widths=(16, 24),
        depths=(1,),
        batches=(3, 6, 12),
        optimizers=("adam", "adamw"),
        precisions=("float32",),
        speed=0.8,
    )

    def build(self) -> None:
        width = self.recipe.width
        self.model = nn.Sequential(
            nn.Embedding(VOCABULARY, width),
            _Experts(width, 4 + self.recipe.seed % 3),
            nn.LayerNorm(width),
            nn.Linear(width, VOCABULARY),
        )
