"""ZClip: the total norm 2.5 deviations above its exponential moving average.

From `ZClip` with its defaults (bluorion-com/ZClip, zclip/zclip.py; arXiv 2504.02507): mean and
variance of the first 25 norms, then moving averages with alpha 0.97. A norm with z > 2.5 is a
spike; the averages take in what it is clipped to, mean + 2.5² std / z. It has no checkpoint, so
each attempt warms up anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import numpy as np

from benchmarks.alerts.finding import Finding
from benchmarks.alerts.peers.peer import Peer
from benchmarks.alerts.peers.series import Series

ALPHA: Final = 0.97
Z: Final = 2.5
WARM_UP: Final = 25
EPS: Final = 1e-6


class ZClip(Peer):
    """Its spikes."""

    name: ClassVar[str] = "ZClip"
    about: ClassVar[str] = "total norm with z > 2.5 over its moving average"

    def hits(self, series: Series) -> Iterator[Finding]:
        begins = np.flatnonzero(np.diff(series.attempt, prepend=-1)).tolist()
        for begin, end in zip(begins, [*begins[1:], len(series.norm)], strict=True):
            for step in spikes(series.norm[begin:end].tolist()):
                yield Finding(step=begin + step, rule="exploding", origin_step=begin + step)


def spikes(norms: Sequence[float]) -> Iterator[int]:
    """Yield the indices of the spikes in the norms of one process."""
    first = norms[:WARM_UP]
    mean = sum(first) / max(len(first), 1)
    variance = sum((norm - mean) ** 2 for norm in first) / max(len(first), 1)
    for index, norm in enumerate(norms[WARM_UP:], WARM_UP):
        deviation = variance**0.5
        z = (norm - mean) / (deviation + EPS)
        taken = norm
        if z > Z:
            yield index
            taken = mean + Z * deviation / (z / Z)
        mean = ALPHA * mean + (1 - ALPHA) * taken
        variance = ALPHA * variance + (1 - ALPHA) * (taken - mean) ** 2
