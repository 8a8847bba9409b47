"""The gradients that `client` measures: those of GPT-2 124M, many small ones, and tiny models."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

VOCABULARY, CONTEXT, WIDTH, LAYERS = 50257, 1024, 768, 12
SMALL_SIZES: Final = (64, 128, 256, 512, 1024, 2048, 4096)
MLP: Final = ((32, 16), (32,), (32, 32), (32,), (4, 32), (4,))


@dataclass(frozen=True, slots=True)
class Case:
    """Gradients to measure.

    Args:
        name: What they are.
        shapes: Of each gradient.
        calls: How many calls are timed in a round, where one is short.
    """

    name: str
    shapes: Shapes
    calls: int = 1

    @property
    def title(self) -> str:
        """Say how many and how large they are."""
        size = 4 * sum(torch.Size(shape).numel() for shape in self.shapes)
        return f"{self.name} ({len(self.shapes)}, {size / 1e6:.1f} MB)"

    def model(self) -> nn.ParameterList:
        """Return parameters with these gradients; their own values are never read, nor written."""
        torch.manual_seed(0)
        model = nn.ParameterList()
        for shape in self.shapes:
            model.append(nn.Parameter(torch.empty(shape)))
            model[-1].grad = 1e-3 * torch.randn(shape)
        return model


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def large(*, quick: bool) -> Case:
    """Return GPT-2 124M."""
    if quick:
        return Case("part of GPT-2", _gpt2_shapes(2, VOCABULARY // 16))
    return Case("GPT-2 124M", _gpt2_shapes(LAYERS, VOCABULARY))


def small(*, quick: bool) -> Case:
    return Case("small", _small_shapes(250 if quick else 2000), calls=1 if quick else 5)


def tiny(*, quick: bool) -> list[Case]:
    """Return models so small that the calls cost more than the numbers."""
    cases = [Case("MLP", MLP, calls=100), Case("tiny", ((16,),) * 148, calls=50)]
    return cases if quick else [*cases, Case("tiny", ((16,),) * 4000, calls=5)]


def warming() -> Case:
    """Return one that takes the same ways through the code as all others, in no memory."""
    return Case("warming", (*_small_shapes(8), (512, 512)))


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
