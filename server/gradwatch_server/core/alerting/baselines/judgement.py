"""What the usual says of one frame: how far each module, the total norm and the loss are off."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.baselines.loss_level import NO_RISE, LossRise
from gradwatch_server.core.alerting.baselines.modules import Modules
from gradwatch_server.core.arrays import (
    BoolArray,
    FloatArray,
    IndexArray,
    largest_of,
    smallest_of,
)

TOTAL: Final = 0
"""The series of the total norm."""

LOSS: Final = 1
"""The series of the loss: its logarithm while every loss was positive, then the loss itself."""

FIRST_MODULE: Final = 2
"""The series of the first module; the others follow in their order."""


@dataclass(frozen=True)
class Judgement:
    """One frame beside what was usual before it. Logarithms are natural.

    Args:
        modules: Which there are, and the layers of each.
        norms: (modules,) L2 norm of the layers together, NaN where absent or non-finite.
        samples: (series,) logarithm of the norm (or what LOSS says), NaN where there is no sample:
            absent, zero, non-finite.
        mean: (series,) usual value.
        deviation: (series,) usual distance from it.
        peak: (series,) largest of the last 256 frames, -Inf without any.
        count: (series,) samples before this frame.
        is_known: (series,) whether there were enough samples to call something unusual.
        is_log_loss: Whether LOSS is a logarithm.
        loss_rise: How far the loss is above its level over the last frames.
    """

    modules: Modules
    norms: FloatArray
    samples: FloatArray
    mean: FloatArray
    deviation: FloatArray
    peak: FloatArray
    count: IndexArray
    is_known: BoolArray
    is_log_loss: bool
    loss_rise: LossRise = NO_RISE

    @cached_property
    def rise(self) -> FloatArray:
        """(series,) sample less the usual; of a logarithm that of a ratio. NaN without a sample."""
        return self.samples - self.mean

    @cached_property
    def highest(self) -> tuple[float, float]:
        """Largest `rise` and `over_peak` of all series: where these are low, none has to be asked.

        -Inf without a sample.
        """
        return largest_of(self.rise), largest_of(self.over_peak)

    @cached_property
    def lowest_rise(self) -> float:
        """Smallest `rise` of all series, Inf without a sample."""
        return smallest_of(self.rise)

    @cached_property
    def z(self) -> FloatArray:
        """(series,) `rise` in usual deviations."""
        return self.rise / self.deviation

    @cached_property
    def over_peak(self) -> FloatArray:
        """(series,) sample less the largest of late; Inf without any, as samples are finite."""
        return self.samples - self.peak

    @cached_property
    def num_modules(self) -> int:
        """Modules with a sample."""
        return int(np.count_nonzero(~np.isnan(self.samples[FIRST_MODULE:])))
