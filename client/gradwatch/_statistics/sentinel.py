"""The sentinel: a cheap look at all gradients that says whether to measure them.

It sums squares. A sum that is NaN, infinite, or a hundred times the usual one is alarming: that is
a norm ten times the usual. A false alarm costs one measurement, so a plain float32 sum is enough:
what overflows is alarming anyway, and what underflows is for the full measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

from gradwatch._statistics.gradients import SMALL_DTYPES, dense, gradient_of, is_plain
from gradwatch_wire.health import SENTINEL_FACTOR

ALARMING: Final = SENTINEL_FACTOR**2
"""Times the usual sum of squares."""

MIN_LOOKS: Final = 8
"""Looks from which on it is known what is usual."""

MAX_ALARMS: Final = 3
"""Alarms in a row; after them nothing is measured for an alarm until a look is quiet."""

MAX_ELEMENTS: Final = 4_096
"""Elements of a tensor below which it is cheaper to look at it together with others."""

_WEIGHT: Final = 1 / 16
_FASTEST: Final = 4.0


class Alarms:
    """Alarms in a row. For the first few a step is measured: a broken run must not cost more."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def ring(self, *, is_alarming: bool) -> bool:
        """Take in a look; tell whether to measure for it."""
        self.count = self.count + 1 if is_alarming else 0
        return 0 < self.count <= MAX_ALARMS


class Sentinel:
    """Looks at gradients on the CPU, at all of an optimizer's or at a part of them.

    Attributes:
        alarms: Looks in a row that were alarming.
    """

    def __init__(self, parameters: Callable[[int], Sequence[nn.Parameter]]) -> None:
        self._parameters = parameters
        self._parts: dict[tuple[int, int, int], _Part] = {}
        self.alarms = Alarms()

    def is_alarming(self, optimizer: int, part: int, slices: int) -> bool:
        """Look at the gradients of every so many parameters, and tell whether to measure all.

        Args:
            part: Number of the first one.
            slices: Distance from each to the next.
        """
        key = optimizer, part, slices
        mine = self._parts.get(key)
        if mine is None:
            mine = self._parts[key] = _Part(self._parameters(optimizer)[part::slices])
        try:
            is_alarming = mine.is_alarming(mine.sum_of_squares())
        except Exception:  # noqa: BLE001 - of a kind of gradient that is measured, if it can be
            del self._parts[key]
            is_alarming = True
        return self.alarms.ring(is_alarming=is_alarming)

    def forget(self) -> None:
        """Take in that parameters have become others."""
        self._parts.clear()


@dataclass(slots=True)
class _Part:
    """Parameters that the sentinel inspects together, and their usual numbers."""

    parameters: Sequence[nn.Parameter]
    small: list[nn.Parameter] = field(default_factory=list)
    large: list[nn.Parameter] = field(default_factory=list)
    usual: float = 0.0
    num_looks: int = 0

    def __post_init__(self) -> None:
        for each in self.parameters:
            is_small = each.numel() < MAX_ELEMENTS and each.dtype in SMALL_DTYPES
            is_small = is_small and not hasattr(each, "main_grad")
            is_small = is_small and (each.grad is None or is_plain(each.grad))
            (self.small if is_small else self.large).append(each)

    def sum_of_squares(self) -> float:
        """Return the sum over all gradients that are there."""
        small = [gradient for each in self.small if (gradient := each.grad) is not None]
        total = 0.0
        if small:
            flat = _flatten_dense_tensors(small)
            flat = flat if flat.dtype is torch.float32 else flat.float()
            total = flat.dot(flat).item()
        for each in self.large:
            gradient = gradient_of(each)
            if gradient is not None:
                total += _sum_of_squares(dense(gradient))
        return total

    def is_alarming(self, total: float) -> bool:
        """Tell whether a sum is out of the usual, and learn from it."""
        is_known = self.num_looks >= MIN_LOOKS
        if not math.isfinite(total) or (is_known and total > ALARMING * self.usual):
            return True
        usual = self.usual if is_known else total
        weight = _WEIGHT if is_known else 1 / (self.num_looks + 1)
        self.usual += (min(total, _FASTEST * usual) - self.usual) * weight
        self.num_looks += 1
        return False


def _sum_of_squares(gradient: Tensor) -> float:
    if gradient.dtype is torch.float16:  # its norm takes ten times as long: NaN and Inf alone
        return gradient.sum(dtype=torch.float32).item() * 0.0
    return float(torch.linalg.vector_norm(gradient).item() ** 2)
