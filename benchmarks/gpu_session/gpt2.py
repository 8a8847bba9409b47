"""A transformer of the size and the work of GPT-2 124M, and one step of its training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from benchmarks.client_cases import CONTEXT, LAYERS, VOCABULARY, WIDTH
from benchmarks.gpu_session.device import Device

BATCH: Final = 8
HEADS: Final = 12


class GPT2(nn.Module):
    """Its head is tied to its embedding."""

    def __init__(self, layers: int, width: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, HEADS, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of predicting each token from those before it."""
        x = self.tokens(tokens) + self.positions.weight
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device, x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        logits = self.norm(x) @ self.tokens.weight.T
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Training:
    """A model, its optimizer and a batch.

    Args:
        device: Where.
        mode: Of `torch.compile`; empty for none.
        has_scaler: Whether float16 with a scaler is used in place of bfloat16.
    """

    def __init__(self, device: Device, mode: str = "", *, has_scaler: bool = False) -> None:
        torch.manual_seed(0)
        size = device.choose((LAYERS, WIDTH, VOCABULARY, CONTEXT), (2, 48, 100, 16))
        self.model = GPT2(*size).to(device.name)
        if not has_scaler:
            self.model.to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.scaler = torch.amp.GradScaler(device.name) if has_scaler else None
        self._name = device.name
        self._tokens = torch.randint(
            size[2], (device.choose(BATCH, 2), size[3]), device=device.name
        )
        self._forward: Callable[[Tensor], Tensor] = self.model
        self._is_graphed = mode == "reduce-overhead"
        if mode and not device.is_rehearsal:  # compiling takes longer than a rehearsal may
            self._forward = torch.compile(self.model, mode=mode)

    def step(self, collect: Callable[[Tensor], object] | None) -> None:
        """Make one step; *collect* is given the loss."""
        if self._is_graphed:
            torch.compiler.cudagraph_mark_step_begin()
        self.optimizer.zero_grad()
        if self.scaler is None:
            loss = self._forward(self._tokens)
            loss.backward()
        else:
            with torch.autocast(self._name, torch.float16):
                loss = self._forward(self._tokens)
            self.scaler.scale(loss).backward()
        if collect is not None:
            collect(loss)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
