"""The arguments of `Watch.collect`: a wrong one is told once and left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from gradwatch_wire.limits import MAX_STEP

LAST_STEP: Final = MAX_STEP // 2
"""What may be given: far from where counting on would leave the wire's range."""


def checked_step(step: int | None) -> int | None:
    """Return the step.

    Raises:
        ValueError: If it is no integer in range.
    """
    if step is not None and (type(step) is not int or not 0 <= step <= LAST_STEP):
        msg = f"step: an integer from 0 to {LAST_STEP}, got {step!r}"
        raise ValueError(msg)
    return step


def checked_loss(loss: Tensor | float | None) -> Tensor | float | None:
    """Return the loss as a number or a 0-d tensor on its device.

    Raises:
        ValueError: If it is not one real number.
    """
    if isinstance(loss, Tensor):
        if loss.numel() != 1 or loss.is_complex():
            msg = f"loss: a number or a one-element tensor, got shape {tuple(loss.shape)}"
            raise ValueError(msg)
        return loss.detach().reshape(())
    return None if loss is None else float(loss)


def checked_size(batch_size: int | None) -> float | None:
    """Return the batch size.

    Raises:
        TypeError: If it is no number; a tensor would have to be synchronised for.
    """
    if batch_size is not None and not isinstance(batch_size, (int, float)):
        msg = f"batch_size: a number, got {type(batch_size).__name__}"
        raise TypeError(msg)
    return None if batch_size is None else float(batch_size)


def sorted_out(
    scalars: Mapping[str, Tensor | float | None],
) -> tuple[dict[str, float], dict[str, list[Tensor]]]:
    """Return host numbers and device tensors apart."""
    numbers: dict[str, float] = {}
    tensors: dict[str, list[Tensor]] = {}
    for name, value in scalars.items():
        if isinstance(value, Tensor):
            tensors[name] = [value]
        elif value is not None:
            numbers[name] = value
    return numbers, tensors
