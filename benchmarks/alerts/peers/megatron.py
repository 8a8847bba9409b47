"""Megatron-LM's own checks: non-finite or unexpectedly large losses and local gradient norms.

From NVIDIA/Megatron-LM: `--check-for-nan-in-loss-and-grad`, `--check-for-large-grads` and
`--check-for-spiky-loss` (megatron/core/distributed/param_and_grad_buffer.py, pretrain_gpt.py,
megatron/core/rerun_state_machine.py, `is_unexpectedly_large`): each rank looks at its loss and, a
bucket at a time, at its gradients before they are reduced; a value is large from 10 times the
largest of its first 100 on. Here one bucket holds all. With a dynamic loss scale gradients are not
checked. The state is in the checkpoint. What is non-finite ends the job; what is large is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from benchmarks.alerts.finding import Finding
from benchmarks.alerts.peers.peer import Peer
from benchmarks.alerts.peers.series import Series
from benchmarks.alerts.recorded import BoolArray, FloatArray

FACTOR: Final = 10.0
SAMPLES: Final = 100


class Megatron(Peer):
    """All three checks, on each rank."""

    name: ClassVar[str] = "Megatron"
    about: ClassVar[str] = "local norm or loss 10 times the largest of the first 100, NaN or Inf"
    ends: ClassVar[bool] = True

    def hits(self, series: Series) -> Iterator[Finding]:
        checks = [("nonfinite", ~np.isfinite(series.loss)), ("loss", large(series.loss))]
        if not series.has_scaler:
            checks.append(("nonfinite", ~np.isfinite(series.local_norm)))
            checks.append(("exploding", large(series.local_norm)))
        for rule, bad in checks:
            for step in np.flatnonzero(bad.any(1)).tolist():
                ranks = np.flatnonzero(bad[step]).tolist()
                rank = ranks[0] if len(ranks) == 1 else None
                yield Finding(step=step, rule=rule, origin_step=step, rank=rank)


def large(values: FloatArray) -> BoolArray:
    """Return (steps, ranks) where the values of each rank are finite and unexpectedly large."""
    with np.errstate(invalid="ignore"):
        largest = np.fmax.reduce(values[:SAMPLES], axis=0, initial=0.0)
        found: BoolArray = np.isfinite(values) & (values >= FACTOR * largest)
    found[:SAMPLES] = False
    return found
