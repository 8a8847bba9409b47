"""Numbers of a run for rules outside gradwatch: those that a training loop has at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from benchmarks.alerts.recorded import BoolArray, FloatArray, IntArray, Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Numbers of consecutive steps, from step 0 on, as rank 0 has them.

    Args:
        layers: (layers,) names.
        mean_abs: (steps, layers) mean of the absolute elements, NaN where there is no gradient.
        nonfinite: (steps, layers) whether an element is NaN or Inf.
        norm: (steps,) of all gradients together, after the reduction and before anything is
            clipped, the loss scale divided out; not finite if a gradient is not, 0 without any.
        local_norm: (steps, ranks) the same before the reduction.
        loss: (steps, ranks).
        has_scaler: Whether there is a GradScaler.
        attempt: (steps,) number of the attempt.
    """

    layers: tuple[str, ...]
    mean_abs: FloatArray
    nonfinite: BoolArray
    norm: FloatArray
    local_norm: FloatArray
    loss: FloatArray
    has_scaler: bool
    attempt: IntArray

    @classmethod
    def of(cls, recorded: Recorded) -> Self:
        rows = recorded.rows
        nonfinite = ((rows.column("nans") > 0) | (rows.column("infs") > 0)) & rows.present
        norm = _norm(np.where(rows.present, rows.column("l2"), 0.0))
        norm[nonfinite.any(1)] = np.nan
        local = norm[:, None]
        if rows.local_l2.shape[1]:
            # NaN also stands for a layer that the rank had no gradient of.
            absent = np.isnan(rows.local_l2) & ~nonfinite[:, None]
            local = _norm(np.where(absent, 0.0, rows.local_l2))
        mean_abs = rows.column("l1") / np.array(recorded.numel, dtype=np.float64)
        mean_abs[~rows.present] = np.nan
        return cls(
            layers=recorded.layers,
            mean_abs=mean_abs,
            nonfinite=nonfinite,
            norm=norm,
            local_norm=local,
            loss=rows.loss,
            has_scaler=bool(np.isfinite(rows.loss_scale).any()),
            attempt=rows.attempt,
        )


def _norm(l2: FloatArray) -> FloatArray:
    """Return the norm of all layers together, which are last."""
    with np.errstate(invalid="ignore", over="ignore"):
        total: FloatArray = np.sqrt(np.sum(l2**2, axis=-1))
    return total
