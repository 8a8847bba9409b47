"""The answer to `/runs/{run}/noise-scale`. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwatch_server.core.noise_scale import MIN_SAMPLES, NoiseSample


def describe_noise_scale(series: Sequence[NoiseSample]) -> dict[str, Any]:
    """Return what `/runs/{run}/noise-scale` says: the newest value, and the series."""
    last = series[-1] if series else None
    return {
        "step": last.step if last else None,
        "noise_scale": last.noise_scale if last else None,
        "min_samples": MIN_SAMPLES,
        "series": [sample._asdict() for sample in series],
    }
