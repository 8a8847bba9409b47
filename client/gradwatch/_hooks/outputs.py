"""The tensors in what a module returns, whatever it returns them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Final

from torch import Tensor

MAX_DEPTH: Final = 4
"""A model's caches may be nested without end; what was computed last is near the top."""


def differentiable(output: object) -> Iterator[Tensor]:
    """Yield the tensors that have a graph.

    Args:
        output: A tensor, or a tuple, list, mapping or dataclass that has some. A model output of
            Transformers is a mapping.
    """
    return (tensor for tensor in tensors_in(output) if tensor.grad_fn is not None)


def tensors_in(output: object, depth: int = MAX_DEPTH) -> list[Tensor]:
    """Return the tensors in what `differentiable` takes.

    Args:
        output: A tensor, or a container of some.
    """
    if isinstance(output, Tensor):
        return [output]
    found: list[Tensor] = []
    if depth:
        for value in _values(output):
            found += tensors_in(value, depth - 1)
    return found


def _values(output: object) -> list[object]:
    if isinstance(output, Mapping):
        return list(output.values())
    if isinstance(output, (tuple, list)):
        return list(output)
    if is_dataclass(output) and not isinstance(output, type):
        return [getattr(output, field.name, None) for field in fields(output)]
    return []
