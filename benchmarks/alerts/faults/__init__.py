"""The faults: one file per kind, and a line here for each variant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from benchmarks.alerts.faults.fault import Fault, Site
from benchmarks.alerts.faults.gradient_scaled import Dead, Drift, GradientScaled, Vanishing
from benchmarks.alerts.faults.nonfinite import NonfiniteGradient, NonfiniteLoss
from benchmarks.alerts.faults.rate import NoRate, Rate

Make: TypeAlias = Callable[[Site], Fault]

FAULTS: Final[dict[str, Make]] = {
    "nan_gradient": NonfiniteGradient,
    "inf_gradient": partial(NonfiniteGradient, value=float("inf")),
    "nan_loss": NonfiniteLoss,
    "module_x10": partial(GradientScaled, factor=10.0),
    "module_x30": partial(GradientScaled, factor=30.0),
    "module_x100": partial(GradientScaled, factor=100.0),
    "module_x30_once": partial(GradientScaled, factor=30.0, once=True),
    "module_x100_once": partial(GradientScaled, factor=100.0, once=True),
    "rate_x30": partial(Rate, factor=30.0),
    "rate_x100": partial(Rate, factor=100.0),
    "rate_zero": NoRate,
    "vanishing": Vanishing,
    "dead": Dead,
    "drift_up_2": partial(Drift, growth=1.02, length=200),
    "drift_up_5": partial(Drift, growth=1.05, length=120),
    "drift_down_5": partial(Drift, growth=0.95, length=120),
}
"""Name of the variant to what makes it."""
