"""History of the steps between two records: numbers of each that the training process knew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, numbers
from gradwatch_wire import Column


@dataclass(frozen=True, slots=True, eq=False)
class StepNumbers:
    """Numbers of some steps, of one rank or over all.

    Args:
        loss: (steps,) the loss, NaN also where none was given.
        has_loss: (steps,) whether one was given.
        lr: (steps,) the learning rate, NaN where it is not known.
        step_time_s: (steps,) seconds of each step, NaN where they are not known.
        skipped: (steps,) whether the update was skipped.
    """

    steps: IndexArray
    loss: FloatArray
    has_loss: BoolArray
    lr: FloatArray
    step_time_s: FloatArray
    skipped: BoolArray

    @classmethod
    def read(cls, columns: Mapping[str, Column], before: int) -> Self | None:
        """Return the history in a record, None if there is none."""
        if "step" not in columns:
            return None
        given = {name: numbers(column) for name, column in columns.items()}
        before_it = np.flatnonzero((given["step"] >= 0) & (given["step"] < before))
        # Steps that a client numbers anew may come twice.
        steps, first = np.unique(given["step"][before_it].astype(np.int64), return_index=True)
        arrays = {name: values[before_it[first]] for name, values in given.items()}
        unknown = np.full(len(steps), np.nan)
        has_loss = arrays.get("has_loss", np.ones(len(steps))) != 0.0
        return cls(
            steps,
            arrays.get("loss", unknown),
            has_loss & ("loss" in arrays),
            arrays.get("lr", unknown),
            arrays.get("step_time_s", unknown),
            arrays.get("skipped", unknown) == 1.0,
        )

    @property
    def num_bytes(self) -> int:
        return 34 * len(self.steps)

    def first_rate_above(self, lr: float) -> int | None:
        """Return the first step with a learning rate above one, None if there is none."""
        places = np.flatnonzero(self.lr > lr)
        return int(self.steps[places[0]]) if len(places) else None

    @property
    def bad_step(self) -> int | None:
        """First step that was taken with a loss that is not finite, None if there is none."""
        places = np.flatnonzero(self.has_loss & ~np.isfinite(self.loss) & ~self.skipped)
        return int(self.steps[places[0]]) if len(places) else None


def merge_steps(histories: Sequence[StepNumbers]) -> StepNumbers | None:
    """Return the history over all ranks, None if none has one.

    The loss is the mean over the ranks that gave one, NaN if one of these was NaN; learning rate
    and time are the largest; a step was skipped if one rank skipped it.
    """
    if len(histories) < 2:
        return histories[0] if histories else None
    steps, places = np.unique(
        np.concatenate([history.steps for history in histories]), return_inverse=True
    )
    total, count = np.zeros(len(steps)), np.zeros(len(steps))
    lr, step_time_s = np.full((2, len(steps)), np.nan)
    skipped = np.zeros(len(steps), dtype=np.bool_)
    begin = 0
    for history in histories:
        at = places[begin : begin + len(history.steps)]
        begin += len(history.steps)
        total[at] += np.where(history.has_loss, history.loss, 0.0)
        count[at] += history.has_loss
        lr[at] = np.fmax(lr[at], history.lr)
        step_time_s[at] = np.fmax(step_time_s[at], history.step_time_s)
        skipped[at] |= history.skipped
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = total / count
    return StepNumbers(steps, loss, count > 0, lr, step_time_s, skipped)
