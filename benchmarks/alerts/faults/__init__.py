"""The faults: one file per kind, and a line here for each variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from benchmarks.alerts.faults.data import BadData, LabelsShuffled, Repeated
from benchmarks.alerts.faults.fault import Fault, Site
from benchmarks.alerts.faults.gradient_scaled import Dead, Drift, GradientScaled, Vanishing
from benchmarks.alerts.faults.loss_scaled import LossScaled
from benchmarks.alerts.faults.missing import Detached, Frozen
from benchmarks.alerts.faults.nonfinite import NonfiniteGradient, NonfiniteLoss
from benchmarks.alerts.faults.overflow import Overflow, ScaleCollapse
from benchmarks.alerts.faults.ranks import BitError, RankLocal, Unreduced
from benchmarks.alerts.faults.rate import NoRate, Rate, RateRamp
from benchmarks.alerts.faults.stall import Stall
from benchmarks.alerts.faults.units import DeadUnits, Saturated, SomeDeadUnits
from benchmarks.alerts.faults.weights import ReplicaCorrupted, WeightCorrupted, WeightsGrown

Make: TypeAlias = Callable[[Site], Fault]

ANYWHERE: Final[dict[str, Make]] = {
    "nan_gradient": NonfiniteGradient,
    "module_x30": partial(GradientScaled, factor=30.0),
    "rate_x100": partial(Rate, factor=100.0),
    "dead": Dead,
    "drift_up_2": partial(Drift, growth=1.02, length=220),
    "detached": Detached,
    "weight_x1000": WeightCorrupted,
    "bad_data": BadData,
    "module_x100_once": partial(GradientScaled, factor=100.0, once=True),
    "vanishing": Vanishing,
    "nan_loss": NonfiniteLoss,
    "loss_x1000": LossScaled,
    "dead_units": DeadUnits,
    "module_x10": partial(GradientScaled, factor=10.0),
    "rate_x30": partial(Rate, factor=30.0),
    "drift_up_5": partial(Drift, growth=1.05, length=120),
    "frozen": Frozen,
    "some_dead_units": SomeDeadUnits,
    "saturated": Saturated,
    "inf_gradient": partial(NonfiniteGradient, value=float("inf")),
    "module_x100": partial(GradientScaled, factor=100.0),
    "labels_shuffled": LabelsShuffled,
    "drift_up_1": partial(Drift, growth=1.01, length=350),
    "drift_down_5": partial(Drift, growth=0.95, length=150),
    "bad_data_5": partial(BadData, steps=5),
    "module_x30_once": partial(GradientScaled, factor=30.0, once=True),
    "rate_ramp": RateRamp,
    "weights_x4": partial(WeightsGrown, factor=4.0),
    "stall": Stall,
    "rate_zero": NoRate,
    "data_repeated": Repeated,
}
"""Name of a variant to what makes it, for any training."""

RANKS: Final[dict[str, Make]] = {
    "rank_local_x30": partial(RankLocal, factor=30.0),
    "unreduced": partial(Unreduced, everywhere=True),
    "replica_corrupted": ReplicaCorrupted,
    "unreduced_module": Unreduced,
    "rank_local_x100": partial(RankLocal, factor=100.0),
    "bit_error": BitError,
    "rank_local_x10": partial(RankLocal, factor=10.0),
}
"""The same for trainings of several ranks only."""

SCALER: Final[dict[str, Make]] = {
    "overflow_x6": partial(Overflow, steps=6),
    "scale_collapse": ScaleCollapse,
    "overflow_x3": partial(Overflow, steps=3),
}
"""The same for trainings with a GradScaler only."""

FAULTS: Final[Mapping[str, Make]] = {**ANYWHERE, **RANKS, **SCALER}
"""All of them."""
