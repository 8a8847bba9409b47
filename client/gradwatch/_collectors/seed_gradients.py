"""The collectors of gradient health: norms enqueued on the device, brought over in one transfer."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from gradwatch._collectors.health_stats import (
    AsyncGradStats,
    GradientHealthMetrics,
    GradientHealthStats,
)
from gradwatch._collectors.input import check_thresholds, gradients_of
from gradwatch._collectors.norms import measure
from gradwatch._statistics.devices import pack
from gradwatch_wire.columns import INFS, L2, NANS, ZEROS
from gradwatch_wire.health import (
    EXPLODING_HEALTH_PENALTY,
    EXPLODING_THRESHOLD,
    VANISHING_HEALTH_PENALTY,
    VANISHING_THRESHOLD,
    health_score,
)
from gradwatch_wire.norms import total_norm


@dataclass(slots=True)
class SeedGradientCollector:
    """Thresholds and penalties, to collect with again and again.

    Args:
        vanishing_threshold: L2 norm below which a gradient is vanishing.
        exploding_threshold: L2 norm above which a gradient is exploding.
        vanishing_penalty: What health loses if all gradients are vanishing.
        exploding_penalty: What health loses if all gradients are exploding.

    Raises:
        ValueError: If a threshold is NaN or below 0.
    """

    vanishing_threshold: float = VANISHING_THRESHOLD
    exploding_threshold: float = EXPLODING_THRESHOLD
    _: KW_ONLY
    vanishing_penalty: float = VANISHING_HEALTH_PENALTY
    exploding_penalty: float = EXPLODING_HEALTH_PENALTY

    def __post_init__(self) -> None:
        check_thresholds(self.vanishing_threshold, self.exploding_threshold)

    def collect(self, params: Iterable[Tensor]) -> GradientHealthStats:
        """Return the statistics, waiting for the device once; see `collect_seed_gradients`."""
        return self.materialize(self.collect_async(params))

    def collect_async(self, params: Iterable[Tensor]) -> AsyncGradStats:
        """Enqueue the statistics and return at once; see `collect_seed_gradients_async`."""
        return collect_seed_gradients_async(
            params, self.vanishing_threshold, self.exploding_threshold
        )

    def materialize(self, async_stats: AsyncGradStats) -> GradientHealthStats:
        """Bring statistics to the host, with the penalties given; see `materialize_grad_stats`."""
        return materialize_grad_stats(
            async_stats,
            vanishing_penalty=self.vanishing_penalty,
            exploding_penalty=self.exploding_penalty,
        )


def collect_seed_gradients_async(
    params: Iterable[Tensor],
    vanishing_threshold: float = VANISHING_THRESHOLD,
    exploding_threshold: float = EXPLODING_THRESHOLD,
) -> AsyncGradStats:
    """Enqueue the statistics of gradients on their device and return at once.

    Args:
        params: Parameters, or other tensors with `.grad`; iterated over once. Those whose gradient
            is None or has no elements are left out.
        vanishing_threshold: L2 norm below which a gradient is vanishing.
        exploding_threshold: L2 norm above which a gradient is exploding.

    Raises:
        TypeError: If *params* is no iterable of tensors.
        ValueError: If a gradient is complex or on a device other than cpu and cuda, or a
            threshold is NaN or below 0.
    """
    check_thresholds(vanishing_threshold, exploding_threshold)
    gradients = gradients_of(params)
    if not gradients.tensors:
        return _nothing()
    norms = measure(gradients.tensors)[L2]
    return _compare(norms, vanishing_threshold, exploding_threshold)


def materialize_grad_stats(
    async_stats: AsyncGradStats,
    *,
    vanishing_penalty: float = VANISHING_HEALTH_PENALTY,
    exploding_penalty: float = EXPLODING_HEALTH_PENALTY,
) -> GradientHealthStats:
    """Bring statistics to the host, in one transfer that waits for the device.

    Args:
        async_stats: What `collect_seed_gradients_async` returned. Synchronise the stream first,
            and nothing is waited for here.
        vanishing_penalty: What health loses if all gradients are vanishing.
        exploding_penalty: What health loses if all gradients are exploding.

    Returns:
        Python floats and bools; 0.0, 1.0, False, False without any gradient.
    """
    stats, _ = _read(async_stats, [], vanishing_penalty, exploding_penalty)
    return stats


@overload
def collect_seed_gradients(
    params: Iterable[Tensor],
    vanishing_threshold: float = ...,
    exploding_threshold: float = ...,
    return_enhanced: Literal[False] = ...,
    *,
    vanishing_penalty: float = ...,
    exploding_penalty: float = ...,
) -> GradientHealthStats: ...
@overload
def collect_seed_gradients(
    params: Iterable[Tensor],
    vanishing_threshold: float = ...,
    exploding_threshold: float = ...,
    *,
    return_enhanced: Literal[True],
    vanishing_penalty: float = ...,
    exploding_penalty: float = ...,
) -> GradientHealthMetrics: ...
@overload
def collect_seed_gradients(
    params: Iterable[Tensor],
    vanishing_threshold: float = ...,
    exploding_threshold: float = ...,
    return_enhanced: bool = ...,
    *,
    vanishing_penalty: float = ...,
    exploding_penalty: float = ...,
) -> GradientHealthStats | GradientHealthMetrics: ...
def collect_seed_gradients(
    params: Iterable[Tensor],
    vanishing_threshold: float = VANISHING_THRESHOLD,
    exploding_threshold: float = EXPLODING_THRESHOLD,
    return_enhanced: bool = False,
    *,
    vanishing_penalty: float = VANISHING_HEALTH_PENALTY,
    exploding_penalty: float = EXPLODING_HEALTH_PENALTY,
) -> GradientHealthStats | GradientHealthMetrics:
    """Return the statistics of gradients, waiting for the device once.

    Args:
        params: As for `collect_seed_gradients_async`.
        vanishing_threshold: L2 norm below which a gradient is vanishing.
        exploding_threshold: L2 norm above which a gradient is exploding.
        return_enhanced: Count zeros, NaN and Inf too, and return `GradientHealthMetrics`.
        vanishing_penalty: What health loses if all gradients are vanishing.
        exploding_penalty: What health loses if all gradients are exploding.

    Raises:
        TypeError: If *params* is no iterable of tensors.
        ValueError: If a gradient is complex or on a device other than cpu and cuda, or a
            threshold is NaN or below 0.
    """
    thresholds = (vanishing_threshold, exploding_threshold)
    penalties = (vanishing_penalty, exploding_penalty)
    if return_enhanced:
        return _collect_enhanced(params, thresholds, penalties)
    stats, _ = _read(collect_seed_gradients_async(params, *thresholds), [], *penalties)
    return stats


def _collect_enhanced(
    params: Iterable[Tensor], thresholds: tuple[float, float], penalties: tuple[float, float]
) -> GradientHealthMetrics:
    check_thresholds(*thresholds)
    gradients = gradients_of(params)
    if not gradients.tensors:
        return GradientHealthMetrics(0.0, 1.0, False, False, 0.0, 0.0, 1.0, 0.0, 0, 0)
    found = measure(gradients.tensors, (L2, ZEROS, NANS, INFS))
    norms, zeros, nans, infs = found.values()
    # Zeros that a sparse gradient does not store are zeros as well.
    unstored = gradients.num_elements - sum(stored.numel() for stored in gradients.tensors)
    extra = [*norms.aminmax(), zeros.sum() + unstored, nans.sum(), infs.sum(), norms]
    stats, numbers = _read(_compare(norms, *thresholds), extra, *penalties)
    smallest, largest, num_zeros, num_nans, num_infs, *each = numbers
    return GradientHealthMetrics(
        **stats,
        min_layer_norm=smallest,
        max_layer_norm=largest,
        norm_ratio=_norm_ratio(each),
        zero_grad_fraction=num_zeros / gradients.num_elements,
        nan_count=int(num_nans),
        inf_count=int(num_infs),
    )


def _neutral() -> GradientHealthStats:
    return {
        "gradient_norm": 0.0,
        "gradient_health": 1.0,
        "has_vanishing": False,
        "has_exploding": False,
    }


def _nothing() -> AsyncGradStats:
    stats = _neutral()
    return {
        "_empty": True,
        "_n_grads": 0,
        "gradient_norm": stats["gradient_norm"],
        "gradient_health": stats["gradient_health"],
        "has_vanishing": stats["has_vanishing"],
        "has_exploding": stats["has_exploding"],
    }


def _compare(
    norms: Tensor, vanishing_threshold: float, exploding_threshold: float
) -> AsyncGradStats:
    return {
        "_empty": False,
        "_n_grads": len(norms),
        "_total_squared_norm": norms.square().sum(),
        "_all_norms": norms,
        "_n_vanishing": (norms < vanishing_threshold).sum(),
        # An infinite threshold finds what is not finite, and nothing else.
        "_n_exploding": ((norms > exploding_threshold) | ~norms.isfinite()).sum(),
    }


def _read(
    async_stats: AsyncGradStats,
    extra: Sequence[Tensor],
    vanishing_penalty: float,
    exploding_penalty: float,
) -> tuple[GradientHealthStats, list[float]]:
    """Bring the statistics, and *extra* numbers along with them, to the host in one transfer."""
    if async_stats["_empty"]:
        return _neutral(), []
    counts = [async_stats["_n_vanishing"], async_stats["_n_exploding"]]
    packed = pack([total_norm(async_stats["_all_norms"], torch), *counts, *extra])
    norm, vanishing, exploding, *rest = packed.tolist()
    health = health_score(
        vanishing / async_stats["_n_grads"],
        exploding / async_stats["_n_grads"],
        has_nonfinite=not math.isfinite(norm),
        vanishing_penalty=vanishing_penalty,
        exploding_penalty=exploding_penalty,
    )
    return {
        "gradient_norm": norm,
        "gradient_health": health,
        "has_vanishing": vanishing > 0,
        "has_exploding": exploding > 0,
    }, rest


def _norm_ratio(norms: Sequence[float]) -> float:
    finite = [norm for norm in norms if math.isfinite(norm)]
    if not finite:
        return 1.0
    ratio = max(finite) / max(min(finite), sys.float_info.min)
    return max(1.0, min(ratio, sys.float_info.max))
