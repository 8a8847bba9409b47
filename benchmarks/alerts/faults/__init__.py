"""Faults: a class per kind, and a line here for each variant, with the sizes that it may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.alerts.faults.data import BadData, LabelsShuffled, Repeated
from benchmarks.alerts.faults.fault import Fault, Site
from benchmarks.alerts.faults.gradient_scaled import Dead, Drift, GradientScaled, Vanishing
from benchmarks.alerts.faults.loss_scaled import LossScaled
from benchmarks.alerts.faults.missing import Detached, Frozen
from benchmarks.alerts.faults.nonfinite import NonfiniteGradient, NonfiniteLoss
from benchmarks.alerts.faults.overflow import Overflow, ScaleCollapse
from benchmarks.alerts.faults.ranks import BitError, RankLocal, Unreduced
from benchmarks.alerts.faults.rate import NoRate, Rate, RateRamp
from benchmarks.alerts.faults.silent import LeftOut, NotZeroed, SameBatch, Stale, UpdatesLost
from benchmarks.alerts.faults.time import Slowed, Stall
from benchmarks.alerts.faults.units import DeadUnits, Saturated, SomeDeadUnits
from benchmarks.alerts.faults.weights import ReplicaCorrupted, WeightCorrupted, WeightsGrown
from benchmarks.alerts.recipe import log_uniform


@dataclass(frozen=True, slots=True)
class Variant:
    """A fault, and the sizes that it may have.

    Args:
        kind: The fault.
        sizes: Smallest and largest `factor`, drawn on a logarithmic scale; None if it has none.
        settings: Further arguments of the fault.
    """

    kind: type[Fault]
    sizes: tuple[float, float] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, site: Site, size: float | None = None) -> Fault:
        """Make the fault.

        Args:
            site: Where it is put.
            size: Factor, drawn if None.

        Raises:
            UnfitError: If it makes no sense there.
        """
        if self.sizes is None:
            return self.kind(site, **self.settings)
        factor = size or log_uniform(site.random, *self.sizes)
        return self.kind(site, factor=factor, **self.settings)  # type: ignore[call-arg]


ANYWHERE: Final[dict[str, Variant]] = {
    "nan_gradient": Variant(NonfiniteGradient),
    "module_scaled": Variant(GradientScaled, (8.0, 150.0)),
    "rate_raised": Variant(Rate, (10.0, 300.0)),
    "dead": Variant(Dead),
    "drift_up": Variant(Drift, (1.01, 1.06)),
    "detached": Variant(Detached),
    "weight_corrupted": Variant(WeightCorrupted, (100.0, 3000.0)),
    "bad_data": Variant(BadData, (20.0, 300.0)),
    "module_scaled_once": Variant(GradientScaled, (20.0, 150.0), {"once": True}),
    "vanishing": Variant(Vanishing, (1e-10, 1e-6)),
    "nan_loss": Variant(NonfiniteLoss),
    "loss_scaled": Variant(LossScaled, (30.0, 3000.0)),
    "dead_units": Variant(DeadUnits),
    "labels_shuffled": Variant(LabelsShuffled),
    "frozen": Variant(Frozen),
    "some_dead_units": Variant(SomeDeadUnits),
    "saturated": Variant(Saturated),
    "inf_gradient": Variant(NonfiniteGradient, None, {"value": float("inf")}),
    "drift_down": Variant(Drift, (0.94, 0.98)),
    "rate_ramp": Variant(RateRamp, (1.02, 1.08)),
    "weights_grown": Variant(WeightsGrown, (2.0, 6.0)),
    "stall": Variant(Stall),
    "slowed": Variant(Slowed, (3.0, 30.0)),
    "rate_zero": Variant(NoRate),
    "data_repeated": Variant(Repeated),
    "left_out": Variant(LeftOut),
    "stale": Variant(Stale),
    "not_zeroed": Variant(NotZeroed),
    "updates_lost": Variant(UpdatesLost, (1e-4, 1e-2)),
}
"""Name of a variant to it, for any training."""

RANKS: Final[dict[str, Variant]] = {
    "rank_local": Variant(RankLocal, (8.0, 150.0)),
    "unreduced": Variant(Unreduced, None, {"everywhere": True}),
    "replica_corrupted": Variant(ReplicaCorrupted, (5.0, 100.0)),
    "unreduced_module": Variant(Unreduced),
    "bit_error": Variant(BitError),
    "same_batch": Variant(SameBatch),
}
"""Variants for trainings of several ranks only."""

SCALER: Final[dict[str, Variant]] = {
    "overflow": Variant(Overflow, (3.0, 8.0)),
    "scale_collapse": Variant(ScaleCollapse),
}
"""Variants for trainings with a GradScaler only."""

FAULTS: Final[Mapping[str, Variant]] = {**ANYWHERE, **RANKS, **SCALER}
"""All of them."""
