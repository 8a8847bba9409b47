"""The loop of small GPT repositories: accumulation, scaler, clipping, cosine rate set by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial

VOCABULARY, CONTEXT, WIDTH, HEADS = 32, 8, 16, 2
MICRO_BATCHES = 3


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, time, width) for the same."""
        size, time, _ = x.shape
        parts = (part.view(size, time, HEADS, -1) for part in self.c_attn(x).split(WIDTH, dim=2))
        q, k, v = (part.transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(size, time, WIDTH))  # type: ignore[no-any-return]  # of a module


class MLP(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, time, width) for the same."""
        return self.c_proj(nn.functional.gelu(self.c_fc(x)))  # type: ignore[no-any-return]  # of a module


class Block(nn.Module):
    """Attention and MLP, each normalised before and beside a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = MLP()

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, time, width) for the same."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]  # of a module


class GPT(nn.Module):
    """Decoder whose head shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of (batch, time) tokens."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return nn.functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def rate_at(step: int, steps: int) -> float:
    """Return the learning rate: two steps of warm-up, then a cosine."""
    if step < 2:
        return 0.01 * (step + 1) / 2
    return 0.001 + 0.5 * 0.009 * (1.0 + math.cos(math.pi * (step - 2) / (steps - 2)))


def train(trial: Trial, *, has_scaler: bool, is_compiled: bool = False) -> nn.Module:
    model = GPT()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    scaler = GradScaler("cpu", enabled=has_scaler, init_scale=2.0**10)
    trial.inject(model, "h.1.mlp.c_fc")
    called: Any = torch.compile(model, backend="aot_eager") if is_compiled else model
    trial.attach(called, optimizer)
    generator = torch.Generator().manual_seed(3)
    for step in range(trial.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, trial.steps)
        losses = []
        for micro in range(MICRO_BATCHES):
            trial.at(step, here=micro == 0)
            text = torch.randint(VOCABULARY, (4, CONTEXT + 1), generator=generator)
            with torch.autocast("cpu", torch.bfloat16):
                loss = called(text[:, :-1], text[:, 1:]) / MICRO_BATCHES
            scaler.scale(loss).backward()
            trial.tell_loss(loss * MICRO_BATCHES)
            losses.append(float(loss * MICRO_BATCHES))
        scale = scaler.get_scale()
        mean = sum(losses) / MICRO_BATCHES
        note = trial.truth.step(step, model, optimizer, loss=mean, scale=scale)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        note.taken = scaler.get_scale() >= scale
        optimizer.zero_grad(set_to_none=True)
    return model


@loop("nanoGPT's loop")
def nanogpt(trial: Trial) -> nn.Module:
    return train(trial, has_scaler=False)


@loop("nanoGPT's loop, GradScaler")
def nanogpt_scaled(trial: Trial) -> nn.Module:
    return train(trial, has_scaler=True)


@loop("nanoGPT's loop, compiled", is_compiled=True)
def nanogpt_compiled(trial: Trial) -> nn.Module:
    return train(trial, has_scaler=False, is_compiled=True)
