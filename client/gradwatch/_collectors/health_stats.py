"""Results of the collectors: numbers still on the device, and numbers at hand."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from torch import Tensor


class AsyncGradStats(TypedDict):
    """Statistics that are still being computed, on the gradients' device.

    Without any gradient there are `_empty`, `_n_grads` and the last four; otherwise `_empty`,
    `_n_grads` and the tensors. Of gradients on several devices the tensors are on the first that
    is not the CPU.
    """

    _empty: bool
    """Whether there was no gradient at all."""
    _n_grads: int
    """Number of gradients that were measured: those that exist and have elements."""
    _total_squared_norm: NotRequired[Tensor]
    """0-d float64: sum of the squares of all elements. Of float64 gradients it may overflow where
    their norm does not; `gradient_norm` is therefore made of `_all_norms`."""
    _all_norms: NotRequired[Tensor]
    """(_n_grads,) float64: L2 norm of each gradient, in the order of the parameters."""
    _n_vanishing: NotRequired[Tensor]
    """0-d int64: number of gradients with a norm below the vanishing threshold."""
    _n_exploding: NotRequired[Tensor]
    """0-d int64: number of gradients with a norm above the exploding threshold, or not finite."""
    gradient_norm: NotRequired[float]
    """0.0; only without any gradient, as are the following."""
    gradient_health: NotRequired[float]
    """1.0."""
    has_vanishing: NotRequired[bool]
    """False."""
    has_exploding: NotRequired[bool]
    """False."""


class GradientHealthStats(TypedDict):
    """Statistics at hand."""

    gradient_norm: float
    """L2 norm of all gradients together, as `torch.nn.utils.clip_grad_norm_` reports it before
    clipping. Not finite if an element is not."""
    gradient_health: float
    """From 1.0, all gradients are well, down to 0.0: see `health_score`."""
    has_vanishing: bool
    """Whether the norm of any gradient is below the vanishing threshold."""
    has_exploding: bool
    """Whether the norm of any gradient is above the exploding threshold, or not finite."""


@dataclass(slots=True)
class GradientHealthMetrics:
    """Statistics at hand, with more detail. A "layer" is one gradient tensor.

    Args:
        gradient_norm: L2 norm of all gradients together.
        gradient_health: From 1.0, all well, down to 0.0: see `health_score`.
        has_vanishing: Whether the norm of any layer is below the vanishing threshold.
        has_exploding: Whether the norm of any layer is above the exploding threshold, or not
            finite.
        min_layer_norm: Smallest L2 norm of a layer; NaN if any layer's is.
        max_layer_norm: Largest L2 norm of a layer; NaN if any layer's is.
        norm_ratio: Largest over smallest L2 norm of the layers whose norm is finite, the smallest
            taken as 2.2e-308 at least and the ratio as 1.8e308 at most, so that it is finite.
        zero_grad_fraction: Elements that are zero over all elements, 0.0 to 1.0.
        nan_count: Number of elements that are NaN.
        inf_count: Number of elements that are infinite.
    """

    gradient_norm: float
    gradient_health: float
    has_vanishing: bool
    has_exploding: bool
    min_layer_norm: float
    max_layer_norm: float
    norm_ratio: float
    zero_grad_fraction: float
    nan_count: int
    inf_count: int

    def is_healthy(self, max_norm_ratio: float = 1000.0, max_zero_fraction: float = 0.5) -> bool:
        """Tell whether nothing is NaN, infinite, vanishing or exploding, nor beyond the limits.

        Args:
            max_norm_ratio: Largest `norm_ratio` that is still healthy.
            max_zero_fraction: Largest `zero_grad_fraction` that is still healthy.
        """
        return (
            not (self.nan_count or self.inf_count or self.has_vanishing or self.has_exploding)
            and self.norm_ratio <= max_norm_ratio
            and self.zero_grad_fraction <= max_zero_fraction
        )

    def to_dict(self) -> dict[str, float | int | bool]:
        return dataclasses.asdict(self)
