"""History of the steps since the last record: their loss, learning rate, time, and whether skipped.

Few steps of a small model are measured. What the host knows of the others anyway goes with the next
record.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch._pending.stats import StepRow
from gradwatch_wire.limits import MAX_BATCH_BYTES, MAX_HISTORY
from gradwatch_wire.names import Inspection, Scalar

Scalars: TypeAlias = Mapping[str, Tensor | float | None]
"""Name to a number of the whole step, as a script gives it."""


class StepLoss:
    """Losses that were given in a step, each with the size of its batch, None without one."""

    __slots__ = ("given",)

    def __init__(self) -> None:
        self.given: list[tuple[Tensor | float, float | None]] = []

    def add(self, loss: Tensor | float, batch_size: float | None = None) -> None:
        """Take in the loss of a batch. One on an accelerator is copied there, without a wait."""
        if isinstance(loss, Tensor):  # a copy: the script may go on writing to its own
            loss = loss.detach().reshape(()).to(torch.float64, copy=True)
        self.given.append((loss, batch_size))

    def take(self) -> Tensor | float | None:
        """Return the mean, weighted by the sizes, and begin anew; None if no loss was given."""
        if not self.given:
            return None
        given, self.given = self.given, []
        if len(given) == 1:
            return given[0][0]
        weights = [1.0 if size is None else size for _, size in given]
        terms = [loss * weight for (loss, _), weight in zip(given, weights, strict=True)]
        return sum(terms[1:], start=terms[0]) / (sum(weights) or math.nan)


def on_host(loss: Tensor | float | None) -> Tensor | float | None:
    """Return a loss as a number where that takes no wait: one on an accelerator stays there."""
    return loss.item() if isinstance(loss, Tensor) and loss.is_cpu else loss


def loss_in(given: Scalars) -> tuple[Tensor | float | None, float | None]:
    """Return the loss among numbers that were given, and the size of its batch."""
    size = given.get(Scalar.BATCH_SIZE)
    return on_host(given.get(Scalar.LOSS)), None if size is None else float(size)


def is_bad(loss: Tensor | float | None) -> bool:
    """Tell whether a loss is NaN or Inf; of one on an accelerator that is not known."""
    return isinstance(loss, (float, int)) and not math.isfinite(loss)


class TakenHistory(NamedTuple):
    """Steps since the last record, for the next one.

    Args:
        rows: Their rows, after the row that they follow; none if there are no such steps.
        late_losses: Place among them to the loss of a step, 0-d, where it is on an accelerator.
        quiet_step: The newest step at which a sentinel that looked at all was quiet, or -1.
        batch: Identity of the batch of the record's own step, empty if nobody gave it.
    """

    rows: Sequence[StepRow]
    late_losses: Mapping[int, Tensor]
    quiet_step: int
    batch: str = ""


NO_HISTORY: Final = TakenHistory((), {}, -1)


class StepHistory:
    """Rows of the steps since the last record, the newest `MAX_HISTORY` of them.

    Args:
        clock: Returns seconds.
        is_kept: Whether there are steps without a record.
        has_one_loss: Whether all losses that are given in a step are of the same kind.

    Attributes:
        quiet_step: The newest step at which a sentinel that looked at all was quiet, or -1.
    """

    def __init__(
        self, clock: Callable[[], float], *, is_kept: bool = True, has_one_loss: bool = True
    ) -> None:
        self.quiet_step = -1
        self._clock = clock
        self._is_kept = is_kept
        self._has_one_loss = has_one_loss
        self._loss = StepLoss()
        self._rows: deque[StepRow] = deque(maxlen=MAX_HISTORY)
        self._late_losses: dict[int, Tensor] = {}  # of steps whose loss is on an accelerator
        self._before: StepRow | None = None  # the newest one that was taken
        self._batch = (-1, "")  # step and identity of the batch that was given last

    def note_loss(self, loss: Tensor | float | None, batch_size: float | None) -> None:
        """Take in a loss of the step under way."""
        if self._is_kept and self._has_one_loss and loss is not None:
            self._loss.add(loss, batch_size)

    def note_batch(self, step: int, batch: str) -> None:
        """Take in the identity of the batch of a step; several of one step follow each other."""
        known = f"{self._batch[1]}; {batch}" if self._batch[0] == step else batch
        is_full = len(known.encode("utf-8", "replace")) > MAX_BATCH_BYTES
        self._batch = (step, self._batch[1] if is_full else known)

    def forget_loss(self) -> None:
        """Forget the losses of the step under way, which begins anew."""
        self._loss.take()

    def end_step(
        self, step: int, optimizers: Sequence[Optimizer], *, was_measured: bool, is_skipped: bool
    ) -> None:
        if not self._is_kept:
            return
        rates = [rate for optimizer in optimizers if (rate := learning_rate(optimizer)) is not None]
        looked_at = Inspection.BY_SENTINEL if step == self.quiet_step else Inspection.NONE
        looked_at = Inspection.IN_FULL if was_measured else looked_at
        now_s, loss, rate = self._clock(), self._loss.take(), max(rates, default=None)
        if isinstance(loss, Tensor):
            self._late_losses[step], loss = loss, None
            if len(self._late_losses) > MAX_HISTORY:
                del self._late_losses[next(iter(self._late_losses))]
        self._rows.append(StepRow(step, now_s, loss, rate, is_skipped, looked_at))

    def add(self, rows: Iterable[StepRow]) -> None:
        self._rows.extend(rows)

    def take(self, step: int) -> TakenHistory:
        """Return the steps before one that has a record of its own, and begin anew.

        The row before them comes first: it tells when their first step began. Its step is -1 if
        there is none.
        """
        rows = [row for row in self._rows if row.step < step]
        late, self._late_losses = self._late_losses, {}
        before = self._before
        if self._rows:
            self._before = self._rows[-1]
            self._rows.clear()
        batch = self._batch[1] if self._batch[0] == step else ""
        if not rows:
            return TakenHistory((), {}, self.quiet_step, batch)
        places = {place: row.step for place, row in enumerate(rows)}
        losses = {place: late[own] for place, own in places.items() if own in late} if late else {}
        return TakenHistory([before or StepRow(-1), *rows], losses, self.quiet_step, batch)


def learning_rate(optimizer: Optimizer) -> float | None:
    """Return the learning rate of the first parameter group, None if it is not on the host.

    Where the first group does not learn it is the largest rate of all groups.
    """
    rate = optimizer.param_groups[0].get("lr")
    if type(rate) is float and rate:  # nearly always
        return rate
    if not isinstance(rate, (int, float)):
        return None  # a tensor (capturable optimizers) would have to be synchronised for
    others = optimizer.param_groups[1:]
    if rate or not others:
        return float(rate)
    rates = [group.get("lr") for group in others]
    numbers = [float(rate) for rate in rates if isinstance(rate, (int, float))]
    return max(numbers) if len(numbers) == len(rates) else None
