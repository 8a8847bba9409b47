"""Recorded runs: their numbers, as a user's client would have sent them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


INDEXED: Final = {"own": "own_at", "weights": "weights_at", "updates": "updates_at"}
"""Arrays of `Rows` about some steps only, to those that say which; all others are (steps, …)."""


class Split(StrEnum):
    """Parts of the set."""

    TUNE = "tune"
    """Rules may be changed until they do well on it."""
    SEEDS = "seeds"
    """Further seeds of the families that rules were tuned on."""
    FAMILIES = "families"
    """Families of which no rule has seen a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLabel:
    """Label of a fork: its fault, and the right content of an alert about it.

    Args:
        name: Variant in the registry of faults, such as `module_x30`.
        kind: Kind of fault, such as `spike`; results are told by it.
        first_step: Step whose record is the first that differs from the healthy one.
        last_step: Last step at which the cause acted; its effects may go on.
        module: The module that was damaged, None if it was no single one.
        layers: Layers in which it began; empty if it was all of them.
        ranks: Ranks at which it began; empty if it was all of them.
        factor: What the norms, the rate or the weight were multiplied by, None if nothing was.
        rules: Rules whose alert is a right answer; empty for a fault that no rule of ours names.
        is_harmful: Whether the loss became non-finite or went 2 standard deviations above that of
            the healthy continuation. A rule that is silent about a harmless fault missed little.
        is_gradual: Whether it grew over many steps, so that no single step shows it.
    """

    name: str
    kind: str
    first_step: int
    last_step: int
    module: str | None
    layers: tuple[str, ...]
    ranks: tuple[int, ...]
    factor: float | None
    rules: tuple[str, ...]
    is_harmful: bool
    is_gradual: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Numbers of consecutive steps, before anything is clipped, the loss scale divided out.

    Args:
        columns: (steps, 6, layers) of rank 0 in the order of `MEASURED_COLUMNS`, NaN where a layer
            had no gradient.
        own: (others, 6, layers) where another rank's reduced gradient was not that of rank 0.
        own_at: (others, 2) index of the step and rank of each of `own`.
        present: (steps, layers) whether there was a gradient.
        trainable: (steps, layers) `requires_grad`.
        loss: (steps, world) mean over the micro-batches of each rank.
        batch_size: (steps, world) samples of each rank.
        lr: (steps,) of the first parameter group.
        loss_scale: (steps,) the GradScaler's, NaN without one.
        taken: (steps,) whether the optimizer stepped; False: the scaler skipped it.
        local_l2: (steps, world, layers) norms before the ranks were reduced, NaN where absent;
            `world` is 0 in a run of one rank, where there is no such column.
        earlier_l2: (steps, passes, layers) l2 after each micro-batch but the last, NaN if none.
        seconds: (steps,) since the run began, when the record came in.
        attempt: (steps,) number of the attempt, from 0: it changes where the job was resumed.
        weights: (digests, ranks, 3, layers) of the weights of each rank after a step: l2, linf, and
            the sum of the bits of all elements as whole numbers, modulo 2^53.
        weights_at: (digests,) index of that step.
        updates: (looks, ranks, 3, layers) of the step that each rank took: `UPDATE_COLUMNS`, NaN
            where a layer had no gradient.
        updates_at: (looks,) index of that step.
        carried: (steps,) whether the gradients of the step before were not emptied.
    """

    columns: FloatArray
    own: FloatArray
    own_at: IntArray
    present: BoolArray
    trainable: BoolArray
    loss: FloatArray
    batch_size: FloatArray
    lr: FloatArray
    loss_scale: FloatArray
    taken: BoolArray
    local_l2: FloatArray
    earlier_l2: FloatArray
    seconds: FloatArray
    attempt: IntArray
    weights: FloatArray
    weights_at: IntArray
    updates: FloatArray
    updates_at: IntArray
    carried: BoolArray

    def __len__(self) -> int:
        return len(self.columns)

    def column(self, name: str) -> FloatArray:
        """Return (steps, layers) of rank 0."""
        from gradwatch_wire.columns import MEASURED_COLUMNS  # noqa: PLC0415

        return self.columns[:, MEASURED_COLUMNS.index(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One run.

    Args:
        name: `family-seed`, and for a fork `family-seed+fault`.
        family: Name of the family.
        seed: Its seed.
        world: Number of ranks.
        split: What it is for.
        layers: Names, in forward order if that was found.
        numel: (layers,) elements.
        dtypes: Of the gradients, as torch spells them.
        is_ordered: Whether `layers` follow the forward pass.
        rows: Its numbers, from step 0 on; of a fork those of its parent come first.
        fault: What was done, None of a healthy run.
        parent: The healthy run that a fork began in, None of a healthy run.
        forked_at: First step that is the fork's own; of a healthy run the number of its steps.
        about: Facts for the report: optimizer, precision, and so on.
        optimizer: Class of the optimizer, empty if there are several.
        beta2: (layers,) decay of its second moment, NaN where it has none; empty: none is known.
    """

    name: str
    family: str
    seed: int
    world: int
    split: Split
    layers: tuple[str, ...]
    numel: tuple[int, ...]
    dtypes: tuple[str, ...]
    is_ordered: bool
    rows: Rows
    fault: FaultLabel | None = None
    parent: str | None = None
    forked_at: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    optimizer: str = ""
    beta2: tuple[float, ...] = ()

    @property
    def healthy_steps(self) -> int:
        """Steps in which each alert is a false one. Those before a fork count in its parent."""
        return 0 if self.fault else len(self.rows)

    @property
    def modules(self) -> dict[str, tuple[int, ...]]:
        """Module to the places of its parameters in `layers`."""
        return modules_of(self.layers)


def steps_of(rows: Rows, at: str) -> IntArray:
    """Return the step of each row of an array of `INDEXED`, as an index."""
    index: IntArray = getattr(rows, at)
    return index if index.ndim == 1 else index[:, 0]


def modules_of(layers: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return module to the places of its parameters: those that share a name up to the last dot."""
    found: dict[str, list[int]] = {}
    for place, name in enumerate(layers):
        found.setdefault(name.rpartition(".")[0], []).append(place)
    return {module: tuple(places) for module, places in found.items()}
