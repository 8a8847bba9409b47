"""History of the steps since the last record: their loss, learning rate, time, and whether skipped.

Few steps of a small model are measured. What the host knows of the others anyway goes with the next
record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch._pending.stats import StepRow
from gradwatch_wire.limits import MAX_HISTORY


class StepLoss:
    """Mean of the losses that were given in a step, weighted by the sizes of their batches."""

    __slots__ = ("_total", "_weight")

    def __init__(self) -> None:
        self._total: Tensor | float | None = None
        self._weight = 0.0

    def add(self, loss: Tensor | float, batch_size: float | None = None) -> None:
        """Take in the loss of a batch. One on an accelerator is copied there, without a wait."""
        if isinstance(loss, Tensor):
            loss = loss.detach().reshape(())
            # A copy: the script may go on writing to its own.
            loss = loss.item() if loss.is_cpu else loss.to(torch.float64, copy=True)
        weight = 1.0 if batch_size is None else batch_size
        self._total = loss * weight if self._total is None else self._total + loss * weight
        self._weight += weight

    @property
    def is_given(self) -> bool:
        """Presence of a loss."""
        return self._total is not None

    def take(self) -> Tensor | float | None:
        """Return the mean and begin anew; None if no loss was given."""
        total, weight = self._total, self._weight
        self._total, self._weight = None, 0.0
        return total if total is None or weight == 1.0 else total / (weight or float("nan"))


class StepHistory:
    """Rows of the steps since the last record, the newest `MAX_HISTORY` of them.

    Attributes:
        loss: Loss of the step under way.
    """

    def __init__(self) -> None:
        self.loss = StepLoss()
        self._rows: deque[StepRow] = deque(maxlen=MAX_HISTORY)
        self._before: StepRow | None = None  # the newest one that was taken

    def add(self, rows: Iterable[StepRow]) -> None:
        """Add steps that have ended."""
        self._rows.extend(rows)

    def take(self, step: int) -> list[StepRow]:
        """Return the rows before a step, which has a record of its own, and begin anew.

        The row before them comes first: it tells when their first step began. Its step is -1 if
        there is none.
        """
        rows = [row for row in self._rows if row.step < step]
        before, newest = self._before, self._rows[-1] if self._rows else None
        self._rows.clear()
        self._before = newest or before
        return [before or StepRow(-1), *rows] if rows else []


def learning_rate(optimizer: Optimizer) -> float | None:
    """Return the learning rate of the first parameter group, None if it is not on the host."""
    rate = optimizer.param_groups[0].get("lr")
    # A tensor (capturable optimizers) would have to be synchronised for.
    return float(rate) if isinstance(rate, (int, float)) else None
