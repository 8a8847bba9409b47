"""Gradients to measure: how they lie in memory, of which dtypes, and how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from benchmarks.client_cases import Shapes, large, small, warming

Filling: TypeAlias = Callable[[Tensor], object]

_APART: Final = 512
"""Bytes at whose multiples tensors begin, as those of torch's allocator do."""


def _ordinary(tensor: Tensor) -> object:
    return tensor.normal_(0.0, 1e-3)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Shapes and dtype of the gradients of one measurement.

    Args:
        name: Label in the printed table.
        shapes: Shape of each gradient.
        dtype: Dtype of gradients with two dimensions or more.
        short_dtype: Dtype of the other gradients; None for `dtype`.
        offset: Elements by which each gradient lies behind a multiple of 512 bytes.
        fill: Writes the numbers.
    """

    name: str
    shapes: Shapes
    dtype: torch.dtype = torch.float32
    short_dtype: torch.dtype | None = None
    offset: int = 0
    fill: Filling = _ordinary

    def dtype_of(self, shape: tuple[int, ...]) -> torch.dtype:
        return self.dtype if len(shape) > 1 or self.short_dtype is None else self.short_dtype

    @property
    def num_bytes(self) -> int:
        return sum(self._space(shape) for shape in self.shapes)

    def _space(self, shape: tuple[int, ...]) -> int:
        size = (torch.Size(shape).numel() + self.offset) * self.dtype_of(shape).itemsize
        return -(-size // _APART) * _APART

    def make(self, device: str) -> tuple[Tensor, list[Tensor]]:
        """Return (bytes,) uint8, and in it the tensors one behind the other."""
        memory = torch.zeros(self.num_bytes, dtype=torch.uint8, device=device)
        made, begin = [], 0
        for shape in self.shapes:
            dtype = self.dtype_of(shape)
            first = begin + self.offset * dtype.itemsize
            size = torch.Size(shape).numel()
            made.append(memory[first : first + size * dtype.itemsize].view(dtype).view(shape))
            self.fill(made[-1])
            begin += self._space(shape)
        return memory, made


def all_gradients(*, is_small: bool) -> list[Gradients]:
    """Return the cases of the stage about time on the device."""
    some = [warming()] * 2 if is_small else [large(quick=False), small(quick=False)]
    gpt2, few = (case.shapes for case in some)
    many = few * 5
    huge = ((1 << 12,) if is_small else ((1 << 31) + 5,),)
    return [
        Gradients("GPT-2 124M float32", gpt2),
        Gradients("GPT-2 124M bfloat16", gpt2, torch.bfloat16),
        Gradients("GPT-2 bfloat16, norms float32", gpt2, torch.bfloat16, torch.float32),
        Gradients("GPT-2 float32, off by one element", gpt2, offset=1),
        Gradients("GPT-2 bfloat16, off by one element", gpt2, torch.bfloat16, offset=1),
        Gradients("GPT-2 float32, all zero", gpt2, fill=Tensor.zero_),
        Gradients(f"{len(few):,} small float32", few),
        Gradients(f"{len(many):,} small float32", many),
        Gradients("one of 2^31 + 5 bfloat16", huge, torch.bfloat16),
        Gradients("8B bfloat16", _llama_8b(is_small=is_small), torch.bfloat16),
    ]


def _llama_8b(*, is_small: bool) -> Shapes:
    """Shapes of Llama 3 8B."""
    width, hidden, vocabulary, layers = (64, 224, 512, 2) if is_small else (4096, 14336, 128256, 32)
    block = (
        *((width, width), (width // 4, width), (width // 4, width), (width, width)),
        *((hidden, width), (hidden, width), (width, hidden)),
        *((width,), (width,)),
    )
    return ((vocabulary, width), *(block * layers), (width,), (vocabulary, width))


def parameters_for(gradients: Sequence[Tensor]) -> nn.ParameterList:
    """Return parameters of these sizes, with nothing in them."""
    return nn.ParameterList(nn.Parameter(torch.empty_like(each)) for each in gradients)


def hand_over(parameters: nn.ParameterList, gradients: Sequence[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
