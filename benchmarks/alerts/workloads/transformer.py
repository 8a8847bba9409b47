"""A small language model on sequences of a grammar."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.alerts.training import Batch, Training, warm_up_cosine

VOCABULARY = 32


def sentences(count: int, length: int, vocabulary: int = VOCABULARY) -> Tensor:
    """Draw sequences in which each token follows from the two before it, with noise.

    Tokens are as frequent as in language: few are common, many are rare.
    """
    others = (torch.rand(count, length) ** 3 * vocabulary).long().numpy()
    is_other = (torch.rand(count, length) < 0.15).numpy()
    tokens = others.copy()
    for place in range(2, length):
        follows = (3 * tokens[:, place - 1] + tokens[:, place - 2] + 1) % vocabulary
        tokens[:, place] = np.where(is_other[:, place], others[:, place], follows)
    return torch.from_numpy(tokens)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        q, k, v = self.qkv(x).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(count, length, width))
        return result


class Block(nn.Module):
    """Attention and a perceptron; with or without normalisation, residuals and dropout."""

    def __init__(
        self, width: int, *, norm: bool = True, residual: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.residual = residual
        self.norm1 = nn.LayerNorm(width) if norm else nn.Identity()
        self.attention = Attention(width)
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


class LanguageModel(nn.Module):
    """Embedding, blocks and head."""

    def __init__(
        self,
        width: int,
        blocks: int,
        *,
        length: int = 16,
        norm: bool = True,
        residual: bool = True,
        dropout: float = 0.0,
        vocabulary: int = VOCABULARY,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            Block(width, norm=norm, residual=residual, dropout=dropout) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy of each token given those before it."""
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Gpt(Training):
    """Language modelling as usual."""

    name = "gpt"
    about = "transformer with residuals and LayerNorm, AdamW, warm-up and cosine, clip 1, dropout"
    worlds: ClassVar[tuple[int, ...]] = (1, 4, 2, 1)
    clip: float | None = 1.0
    default_steps = 1500

    def build(self) -> None:
        width = (16, 24, 16, 32)[self.seed % 4]
        self.model = LanguageModel(width, 2, dropout=0.1)
        self.optimizers = [
            torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.1, fused=True)
        ]

    def batch(self, step: int, rank: int) -> Batch:
        return (sentences(8, 12),)

    def loss(self, step: int, *batch: Tensor) -> Tensor:
        return next_token_loss(self.model, batch[0])

    def schedule(self, done: float) -> float:
        return warm_up_cosine(done)
