"""OLMo-core's spikes: the loss or the total norm 6 standard deviations above the last 128.

From `StabilityMonitorCallback` (allenai/OLMo-core, src/olmo_core/train/callbacks/
stability_monitor.py): a value is a spike if it is above mean + 6 std of the 128 values before it,
std without Bessel's correction; not before there are 128, nor if std < 1e-10. Every value enters
the window, spikes too, and NaN, which then silences it for 128 steps. It is in its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from benchmarks.alerts.finding import Finding
from benchmarks.alerts.peers.peer import Peer
from benchmarks.alerts.peers.series import Series
from benchmarks.alerts.recorded import FloatArray, IntArray

WINDOW: Final = 128
SIGMAS: Final = 6.0
MIN_STD: Final = 1e-10


class OlmoCore(Peer):
    """Both series."""

    name: ClassVar[str] = "OLMo-core"
    about: ClassVar[str] = "total norm or loss 6 deviations above the mean of the last 128"

    def hits(self, series: Series) -> Iterator[Finding]:
        for rule, values in (("exploding", series.norm), ("loss", series.loss.mean(1))):
            for step in spikes(values).tolist():
                yield Finding(step=step, rule=rule, origin_step=step)


def spikes(values: FloatArray) -> IntArray:
    """Return the indices of the spikes in a series."""
    if len(values) <= WINDOW:
        return np.array([], dtype=np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        before = np.lib.stride_tricks.sliding_window_view(values, WINDOW)[:-1]
        mean, std = before.mean(1), before.std(1)
        is_spike = (std >= MIN_STD) & (values[WINDOW:] > mean + SIGMAS * std)
    found: IntArray = np.flatnonzero(is_spike) + WINDOW
    return found
