"""Lightning's check for a non-finite loss.

From Lightning-AI/pytorch-lightning: `EarlyStopping(check_finite=True)`, its default, ends the
training when the monitored loss is NaN or Inf, as does the loss check of `detect_anomaly`. The
gradients are not looked at. Any rank ends all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from benchmarks.alerts.finding import Finding
from benchmarks.alerts.peers.peer import Peer
from benchmarks.alerts.peers.series import Series


class Lightning(Peer):
    """The loss of each step."""

    name: ClassVar[str] = "Lightning"
    about: ClassVar[str] = "the loss is NaN or Inf"
    ends: ClassVar[bool] = True

    def hits(self, series: Series) -> Iterator[Finding]:
        bad = ~np.isfinite(series.loss)
        for step in np.flatnonzero(bad.any(1)).tolist():
            ranks = np.flatnonzero(bad[step]).tolist()
            rank = ranks[0] if len(ranks) == 1 and series.loss.shape[1] > 1 else None
            yield Finding(step=step, rule="nonfinite", origin_step=step, rank=rank)
