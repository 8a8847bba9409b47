"""Modules: the layers that share a name up to the last dot; norms, and shares of layers in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, any_true, grown
from gradwatch_wire.norms import combine_norms

_SAFE: Final = (1e-150, 1e150)
"""Norms between these can be squared and added without leaving the range of float64."""


@dataclass
class Modules:
    """Module of each layer. Places are given in order and never change.

    Args:
        names: (modules,) names; that of a layer without a dot is its own.
        of_layer: (layers,) index of the module of each layer.
    """

    names: list[str] = field(default_factory=list)
    of_layer: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        self._places = {name: place for place, name in enumerate(self.names)}
        self._are_single = len(self.of_layer) == len(self.names)  # whether each has one layer

    def extend(self, layers: Sequence[str]) -> None:
        """Take in the layers that came after those known; all of them are given."""
        joined = layers[len(self.of_layer) :]
        new = [self._place(name.rpartition(".")[0] or name) for name in joined]
        if new:
            self.of_layer = np.concatenate([self.of_layer, np.array(new, dtype=np.int64)])
            self._are_single = len(self.of_layer) == len(self.names)

    def norms(self, l2: FloatArray) -> FloatArray:
        """Return (modules,) √Σ l2² of the layers that are there; NaN without any.

        A layer with a NaN norm counts as absent: callers leave modules out that have something
        non-finite.
        """
        if self._are_single and len(l2) == len(self.names):
            return np.abs(l2)
        module_of = self.of_layer[: len(l2)]
        absent = np.isnan(l2)
        norms = np.abs(l2)  # a norm below 0 may come from the wire
        are_all = not any_true(absent) and len(l2) == len(self.of_layer)
        if not are_all:
            norms[absent] = 0.0
        # bincount adds one after the other, the same way on every processor.
        if _is_safe(norms):
            squares = np.bincount(module_of, weights=norms * norms, minlength=len(self.names))
            total: FloatArray = np.sqrt(squares)
        else:
            total = self._scaled(norms, module_of)
        if are_all:
            return total
        counts = np.bincount(module_of, weights=~absent, minlength=len(self.names))
        return np.where(counts > 0, total, np.nan)

    def any_of(self, flagged: BoolArray) -> BoolArray:
        """Return (modules,) whether one of the layers of each is flagged, (layers,)."""
        flags = np.zeros(len(self.names), dtype=np.bool_)
        flags[self.of_layer[: len(flagged)][flagged]] = True
        return flags

    def all_of(self, flagged: BoolArray, among: BoolArray) -> BoolArray:
        """Return (modules,) whether all layers of each that are *among* are flagged, and some."""
        return self.any_of(flagged & among) & ~self.any_of(among & ~flagged)

    def spread(self, modules: BoolArray, num_layers: int) -> BoolArray:
        """Return (layers,) whether the module of each layer is flagged."""
        spread: BoolArray = modules[self.of_layer[:num_layers]]
        return spread

    def _scaled(self, norms: FloatArray, of_layer: IndexArray) -> FloatArray:
        """Do the same for norms whose squares leave the range of float64."""
        num = len(self.names)

        def added(values: FloatArray) -> FloatArray:
            sums: FloatArray = np.bincount(of_layer, weights=values, minlength=num).astype(
                np.float64
            )
            return sums

        def largest(values: FloatArray) -> FloatArray:
            peaks = np.zeros(num)
            np.maximum.at(peaks, of_layer, values)
            return peaks

        with np.errstate(over="ignore"):  # it then gives the largest float
            return combine_norms(
                norms, np, largest=largest, add=added, spread=lambda scale: scale[of_layer]
            )

    def _place(self, name: str) -> int:
        place = self._places.setdefault(name, len(self.names))
        if place == len(self.names):
            self.names.append(name)
        return place


SHARE_FRAMES: Final = 64
"""Quiet frames in whose mean a share stands."""


@dataclass(slots=True)
class Shares:
    """Usual share of each layer in the norm of its module.

    Attributes:
        values: (layers,) the shares, NaN of a layer without a norm so far.
    """

    values: FloatArray = field(default_factory=lambda: np.zeros(0))
    num_frames: int = 0

    def add(
        self, l2: FloatArray, norms: FloatArray, of_layer: IndexArray, *, is_quiet: bool
    ) -> None:
        """Learn from a frame; one that is not quiet says only something of layers that are new.

        Args:
            l2: (layers,) norms, NaN of a layer that is absent; below 0 they may come from the wire.
        """
        self.values = grown(self.values, len(of_layer), np.nan)
        known = self.values[: len(l2)]
        new = np.isnan(known)
        if not is_quiet and not any_true(new):
            return
        shares = np.abs(l2) / norms[of_layer[: len(l2)]]
        finite = np.isfinite(shares)
        if is_quiet:
            self.num_frames += 1
            change = shares - known
            change *= max(1.0 / self.num_frames, 1.0 / SHARE_FRAMES)
            np.add(known, change, out=known, where=finite)
        np.copyto(known, shares, where=new & finite)


def norm_of(norms: FloatArray) -> float:
    """Return the L2 norm of all modules together, NaN without any."""
    largest = float(np.fmax.reduce(norms, initial=-math.inf))
    if not 0.0 < largest < math.inf:
        return max(largest, 0.0) if largest > -math.inf else math.nan
    shares = norms / largest  # scaled: squares may leave the range of float64
    shares[np.isnan(shares)] = 0.0
    return largest * math.sqrt(float(shares.dot(shares)))


def _is_safe(norms: FloatArray) -> bool:
    largest = float(np.maximum.reduce(norms, initial=0.0))
    if largest >= _SAFE[1]:
        return False
    # An overflow shows in the largest; what underflows beside it matters only where it is alone.
    return float(np.minimum.reduce(norms, initial=math.inf)) >= _SAFE[0] or not any_true(
        (norms > 0.0) & (norms < _SAFE[0])
    )
