"""The gradients that `client` measures: those of GPT-2 124M, and many small ones."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

VOCABULARY, CONTEXT, WIDTH, LAYERS = 50257, 1024, 768, 12
NUM_SMALL: Final = 2000
SMALL_SIZES: Final = (64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Case:
    """Gradients to measure.

    Args:
        name: What they are.
        shapes: Of each gradient.
        dtype: Of all of them.
        calls: How many calls are timed together, where one is short.
    """

    name: str
    shapes: Shapes
    dtype: torch.dtype = torch.float32
    calls: int = 1

    @property
    def title(self) -> str:
        """Say how many and how large they are."""
        size = sum(torch.Size(shape).numel() for shape in self.shapes) * self.dtype.itemsize
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.name} {dtype} ({len(self.shapes)}, {size / 1e6:.0f} MB)"

    def model(self, device: str = "cpu") -> nn.ParameterList:
        """Return parameters with these gradients; their own values are never read, nor written."""
        torch.manual_seed(0)
        model = nn.ParameterList()
        for shape in self.shapes:
            model.append(nn.Parameter(torch.empty(shape, dtype=self.dtype, device=device)))
            model[-1].grad = 1e-3 * torch.randn(shape, dtype=self.dtype, device=device)
        return model


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Return the gradients of a model."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def cases(*, quick: bool) -> tuple[Case, Case, Case]:
    """Return GPT-2 124M in float32, the small tensors, and GPT-2 124M in bfloat16."""
    shapes = _gpt2_shapes(2, VOCABULARY // 16) if quick else _gpt2_shapes(LAYERS, VOCABULARY)
    name = "part of GPT-2" if quick else "GPT-2 124M"
    return (
        Case(name, shapes),
        Case(
            "small", _small_shapes(NUM_SMALL // 8 if quick else NUM_SMALL), calls=1 if quick else 5
        ),
        Case(name, shapes, torch.bfloat16),
    )


def tiny(case: Case) -> Case:
    """Return one that takes the same ways through the code as *case*, in no memory."""
    return Case("tiny", (*_small_shapes(8), (512, 512)), case.dtype)


def _gpt2_shapes(layers: int, vocabulary: int) -> Shapes:
    """Shapes in the order of the model's parameters (Radford et al. 2019; `gpt2` on the hub)."""
    norm = ((WIDTH,), (WIDTH,))
    block = (
        *norm,
        *((WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)),
        *norm,
        *((WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH), (WIDTH,)),
    )
    return ((vocabulary, WIDTH), (CONTEXT, WIDTH), *(block * layers), *norm)


def _small_shapes(number: int) -> Shapes:
    dice = random.Random(0)
    return tuple((dice.choice(SMALL_SIZES),) for _ in range(number))
