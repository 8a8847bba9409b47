"""Gradient telemetry for PyTorch: which layer on which rank went wrong at which step.

Typical use::

    import gradwatch

    watch = gradwatch.attach(model, optimizer, run="gpt2-small")
    for batch in loader:
        loss = model(batch)
        loss.backward()
        watch.collect(loss=loss)  # optional: whose loss was NaN
        optimizer.step()
    watch.close()

Training never waits: nothing here synchronises with the device, blocks on the network, or raises
once `attach` has returned.
"""

try:
    from gradwatch._watch.attach import attach
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "gradwatch needs PyTorch; run: pip install 'gradwatch[client]'", name="torch"
    ) from None
from gradwatch._watch.null import NullWatch
from gradwatch._watch.watch import Watch
from gradwatch.collector import (
    EXPLODING_HEALTH_PENALTY,
    EXPLODING_THRESHOLD,
    VANISHING_HEALTH_PENALTY,
    VANISHING_THRESHOLD,
    AsyncDualGradStats,
    AsyncGradStats,
    AsyncHostGradStats,
    AsyncSeedGradStats,
    DualGradientStats,
    GradientHealthMetrics,
    GradientHealthStats,
    SeedGradientCollector,
    collect_dual_gradients_async,
    collect_host_gradients_async,
    collect_seed_gradients,
    collect_seed_gradients_async,
    collect_seed_gradients_only_async,
    compute_grad_norm_surrogate,
    materialize_dual_grad_stats,
    materialize_grad_stats,
)
from gradwatch.gain_monitor import GradientGainMonitor
from gradwatch_wire.version import __version__

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
    "GradientGainMonitor",
    "GradientHealthMetrics",
    "GradientHealthStats",
    "NullWatch",
    "SeedGradientCollector",
    "Watch",
    "__version__",
    "attach",
    "collect_dual_gradients_async",
    "collect_host_gradients_async",
    "collect_seed_gradients",
    "collect_seed_gradients_async",
    "collect_seed_gradients_only_async",
    "compute_grad_norm_surrogate",
    "materialize_dual_grad_stats",
    "materialize_grad_stats",
]
