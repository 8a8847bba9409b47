"""SageMaker Debugger's rules `VanishingGradient` and `ExplodingTensor`, on the gradients.

From "List of Debugger built-in rules" (awsdocs, debugger-built-in-rules.md): `VanishingGradient`
is met if the mean of a tensor's absolute values is below `threshold`, 1e-7 by default;
`ExplodingTensor` if a tensor has a NaN or an Inf (`only_nan` False). The evaluation ends with the
first hit. Both look at every tensor; the first one is named here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from benchmarks.alerts.finding import Finding
from benchmarks.alerts.peers.peer import Peer
from benchmarks.alerts.peers.series import Series

THRESHOLD: Final = 1e-7


class SageMaker(Peer):
    """Both rules."""

    name: ClassVar[str] = "SageMaker"
    about: ClassVar[str] = "a tensor's mean |g| < 1e-7, or NaN or Inf in it"
    ends: ClassVar[bool] = True

    def hits(self, series: Series) -> Iterator[Finding]:
        with np.errstate(invalid="ignore"):
            vanishing = series.mean_abs < THRESHOLD
        for rule, bad in (("vanishing", vanishing), ("nonfinite", series.nonfinite)):
            for step in np.flatnonzero(bad.any(1)).tolist():
                layer = series.layers[int(bad[step].argmax())]
                yield Finding(step=step, rule=rule, origin_step=step, layer=layer)
