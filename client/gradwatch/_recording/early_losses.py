"""Losses of backward passes that leave no gradient yet.

Under FSDP2 with `set_requires_gradient_sync(False)` the shards get their gradient in the last pass
of a step. The passes before it are not seen, and no window is open when their losses are given.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gradwatch._layers.sharded_parameters import has_unreduced
from gradwatch._recording.accumulator import SampleAccumulator


class EarlyLosses:
    """Keeps such losses until the pass that reduces; they belong to its window."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._losses: list[tuple[Tensor | float, float | None]] = []

    def keep(self, loss: Tensor | float, batch_size: float | None) -> bool:
        """Keep a loss if such a pass has just been; tell whether it has."""
        if not has_unreduced(module for top in self._modules for module in top.modules()):
            return False
        self._losses.append((loss, batch_size))
        return True

    def add_to(self, known: SampleAccumulator) -> None:
        """Give what is kept to the window of the pass that has reduced."""
        for loss, batch_size in self._losses:
            known.add_loss(loss, batch_size)

    def clear(self) -> None:
        """Forget what is kept: the step it belongs to is over."""
        self._losses.clear()
