"""The gradient noise scale: how large a batch has to be for its gradient to be mostly signal.

From the gradients of single ranks, of `b` samples each, and their average, of `B` samples
(McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1):

    G² = (B |g_B|² - b mean|g_b|²) / (B - b)         the squared norm of the true gradient
    S  = (mean|g_b|² - |g_B|²) / (1/b - 1/B)         the trace of the covariance of one sample's

Both are unbiased and noisy; G² of one step may be negative. So each is averaged exponentially, and
the noise scale is the ratio of the averages.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np

from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.local_norms import local_norms
from gradwatch_wire.columns import L2
from gradwatch_wire.names import Label, Reduction, Scalar

WEIGHT: Final = 0.03
"""Weight of a sample in the running averages."""

MIN_SAMPLES: Final = 100
"""Samples before which the averages say too little."""


class NoiseSample(NamedTuple):
    """Noise scale at one step.

    Args:
        noise: S of this step alone.
        signal: G² of this step alone, maybe negative.
        noise_mean: Running average of S.
        signal_mean: Running average of G².
        noise_scale: Their ratio in samples, None before 100 steps and while G² is not positive.
    """

    step: int
    noise: float
    signal: float
    noise_mean: float
    signal_mean: float
    noise_scale: float | None


@dataclass(slots=True)
class NoiseScale:
    """The series of one attempt, and the samples that there ever were."""

    _samples: deque[NoiseSample]
    _count: int = 0

    @classmethod
    def of(cls, capacity: int) -> Self:
        return cls(deque(maxlen=capacity))

    def add(self, frame: Frame) -> None:
        """Take in a frame; one that has not all it takes adds nothing."""
        sample = estimate(frame)
        if sample is None:
            return
        noise, signal = sample
        self._count += 1
        noise_mean, signal_mean = noise, signal
        if self._samples:
            # As an arithmetic mean at first, so that the first sample weighs no more than others.
            weight = max(WEIGHT, 1.0 / self._count)
            last = self._samples[-1]
            noise_mean = last.noise_mean + weight * (noise - last.noise_mean)
            signal_mean = last.signal_mean + weight * (signal - last.signal_mean)
        is_known = self._count >= MIN_SAMPLES and signal_mean > 0.0
        ratio = noise_mean / signal_mean if is_known else math.nan
        self._samples.append(
            NoiseSample(
                frame.step,
                noise,
                signal,
                noise_mean,
                signal_mean,
                ratio if math.isfinite(ratio) else None,
            )
        )

    def series(self) -> tuple[NoiseSample, ...]:
        """Return the samples, oldest first."""
        return tuple(self._samples)

    def at(self, step: int) -> float | None:
        """Return the noise scale at *step* if that is the newest sample, else None."""
        last = self._samples[-1] if self._samples else None
        return last.noise_scale if last is not None and last.step == step else None


def estimate(frame: Frame) -> tuple[float, float] | None:
    """Return S and G² of one step, None if it has not all it takes.

    It takes two ranks or more with the same layers, which all sent the norms of their own gradients
    and the same batch size, of one collection, averaged over ranks and finite.
    """
    gathered = local_norms(frame)
    if len(gathered) != 1 or frame.coverage < 1.0 or frame.has_nonfinite:
        return None
    (norms,) = gathered
    num_ranks = len(norms.ranks)
    batch = _batch_size(frame)
    is_known = (np.isfinite(norms.l2) & (norms.l2 >= 0.0)).all()
    if batch is None or num_ranks < 2 or len(frame.parts) != num_ranks or not is_known:
        return None
    total = batch * num_ranks
    averaged = frame.column(L2)[norms.index]
    with np.errstate(over="ignore"):
        small = float(np.square(norms.l2).sum(axis=1).mean())
        large = float(np.square(averaged).sum())
    noise = (small - large) / (1.0 / batch - 1.0 / total)
    signal = (total * large - batch * small) / (total - batch)
    return (noise, signal) if math.isfinite(noise) and math.isfinite(signal) else None


def _batch_size(frame: Frame) -> float | None:
    """Return the samples of each rank, None if they are not the same, or not of one backward pass.

    Of several passes the local norms are the largest, not those of the sum.
    """
    sizes: set[float] = set()
    for part in frame.parts:
        if (
            part.labels.get(Label.REDUCTION) != Reduction.MEAN
            or Scalar.COLLECTIONS in part.scalars
            or Scalar.BATCH_SIZE not in part.scalars
        ):
            return None
        sizes.add(part.scalars[Scalar.BATCH_SIZE])
    size = sizes.pop() if len(sizes) == 1 else math.nan
    return size if 0.0 < size < math.inf else None
