"""Gradient statistics for people who want the numbers without the service.

Typical use::

    stats = collect_seed_gradients(model.parameters())  # waits for the device once
    if stats["has_exploding"]: ...

or, where the loop must not wait::

    pending = collect_seed_gradients_async(model.parameters())  # after backward, before clipping
    ...  # later, once the stream has caught up
    stats = materialize_grad_stats(pending)

All numbers come from the one function that the service uses, and are right for every finite
input. Nothing here has state: threads may collect at once. `docs/collectors.md` explains each key.
"""

from __future__ import annotations

import torch
from torch import nn

from gradwatch._collectors.dual_gradients import (
    AsyncDualGradStats,
    AsyncHostGradStats,
    AsyncSeedGradStats,
    DualGradientStats,
    collect_dual_gradients_async,
    collect_host_gradients_async,
    collect_seed_gradients_only_async,
    materialize_dual_grad_stats,
)
from gradwatch._collectors.health_stats import (
    AsyncGradStats,
    GradientHealthMetrics,
    GradientHealthStats,
)
from gradwatch._collectors.input import gradients_of
from gradwatch._collectors.norms import measure
from gradwatch._collectors.seed_gradients import (
    SeedGradientCollector,
    collect_seed_gradients,
    collect_seed_gradients_async,
    materialize_grad_stats,
)
from gradwatch_wire.columns import L2
from gradwatch_wire.health import (
    EXPLODING_HEALTH_PENALTY,
    EXPLODING_THRESHOLD,
    VANISHING_HEALTH_PENALTY,
    VANISHING_THRESHOLD,
)
from gradwatch_wire.norms import total_norm

__all__ = [
    "EXPLODING_HEALTH_PENALTY",
    "EXPLODING_THRESHOLD",
    "VANISHING_HEALTH_PENALTY",
    "VANISHING_THRESHOLD",
    "AsyncDualGradStats",
    "AsyncGradStats",
    "AsyncHostGradStats",
    "AsyncSeedGradStats",
    "DualGradientStats",
    "GradientHealthMetrics",
    "GradientHealthStats",
    "SeedGradientCollector",
    "collect_dual_gradients_async",
    "collect_host_gradients_async",
    "collect_seed_gradients",
    "collect_seed_gradients_async",
    "collect_seed_gradients_only_async",
    "compute_grad_norm_surrogate",
    "materialize_dual_grad_stats",
    "materialize_grad_stats",
]


def compute_grad_norm_surrogate(module: nn.Module) -> float | None:
    """Return the L2 norm of all gradients of a module together, waiting for the device once.

    Args:
        module: Its parameters' gradients are taken, those of its submodules as well.

    Returns:
        The norm, finite for every finite gradient; None without any gradient.

    Raises:
        TypeError: If *module* is no module.
        ValueError: If a gradient is complex, or on a device other than cpu and cuda.
    """
    if not isinstance(module, nn.Module):
        msg = f"module: a torch.nn.Module, got {type(module).__name__}"
        raise TypeError(msg)
    gradients = gradients_of(module.parameters())
    if not gradients.tensors:
        return None
    return float(total_norm(measure(gradients.tensors)[L2], torch))
