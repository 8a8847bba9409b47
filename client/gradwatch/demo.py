"""Training of the demo: a small character-level transformer on Python's own sources, with DDP.

    gradwatch serve
    torchrun --standalone --nproc-per-node 2 -m gradwatch.demo

`gradwatch demo` starts it as two processes of its own. `Sabotage` is for that, and off unless
asked for.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.nn.parallel import DistributedDataParallel

import gradwatch

VOCABULARY = 128  # ASCII; character 0 stands between two files
CONTEXT = 64
WIDTH = 96
HEADS = 4
BLOCKS = 3
BATCH = 16  # windows per rank and step


class TransformerBlock(nn.Module):
    """Causal self-attention and a two-layer perceptron, each added to the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, context, width) to the same shape."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (batch, heads, context, width of a head) each
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        mapped: Tensor = self.mlp(self.mlp_norm(x))
        return x + mapped


class CharTransformer(nn.Module):
    """Predicts the next character at each position of a window."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(BLOCKS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, characters: Tensor) -> Tensor:
        """Return the logits, (batch, context, vocabulary)."""
        x = self.blocks(self.characters(characters) + self.positions)
        logits: Tensor = self.head(x)
        return logits


@dataclass(frozen=True)
class Sabotage:
    """Faults, and the steps at which they come. Step -1 is never."""

    poison_step: int
    poison_rank: int
    raise_lr_step: int
    raise_lr: float

    def spoil(self, windows: Tensor, step: int, rank: int) -> Tensor:
        """Return a batch of zero bytes, as from a hole in a file, where one is asked for."""
        poisoned = step == self.poison_step and rank == self.poison_rank
        return torch.zeros_like(windows) if poisoned else windows

    def raise_rate(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set another learning rate, as a wrong schedule would."""
        if step == self.raise_lr_step:
            for group in optimizer.param_groups:
                group["lr"] = self.raise_lr


def read_library() -> Tensor:
    """Return the modules of Python's standard library as one row of ASCII codes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [file.read_text("utf-8", "ignore").encode("ascii", "ignore") for file in files]
    return torch.frombuffer(bytearray(b"\0".join(texts)), dtype=torch.uint8).long()


def masked_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over the targets that are characters of a file."""
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    mask = (targets.flatten() != 0).float()
    return (losses * mask).sum() / mask.sum()


def train(steps: int, lr: float, seed: int, run: str, sabotage: Sabotage) -> None:
    """Train one rank; rank 0 prints."""
    rank = dist.get_rank()
    text = read_library()
    torch.manual_seed(seed)
    model = DistributedDataParallel(CharTransformer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    dice = torch.Generator().manual_seed(seed * dist.get_world_size() + rank)
    with gradwatch.attach(model, optimizer, run=run) as watch:
        for step in range(steps):
            starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=dice)
            windows = sabotage.spoil(text[starts + torch.arange(CONTEXT + 1)], step, rank)
            sabotage.raise_rate(optimizer, step)

            loss = masked_loss(model(windows[:, :-1]), windows[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            watch.collect(loss=loss)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if norm.isfinite():
                optimizer.step()
            if rank == 0:
                line = f"step {step:4d}  loss {loss.item():.3f}  norm {norm.item():.3g}"
                print(line, flush=True)  # noqa: T201 - this is a program


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train a small character-level transformer.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", default=os.environ.get("GRADWATCH_RUN", "char-transformer"))
    sabotage = parser.add_argument_group("sabotage")
    sabotage.add_argument("--poison-step", type=int, default=-1)
    sabotage.add_argument("--poison-rank", type=int, default=1)
    sabotage.add_argument("--raise-lr-step", type=int, default=-1)
    sabotage.add_argument("--raise-lr", type=float, default=1.0)
    given = parser.parse_args()
    planned = Sabotage(given.poison_step, given.poison_rank, given.raise_lr_step, given.raise_lr)
    dist.init_process_group("gloo")
    try:
        train(given.steps, given.lr, given.seed, given.run, planned)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
