"""The usual levels of modules, as readers see them: what the rules judge a frame by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray


@dataclass(frozen=True, slots=True, eq=False)
class ModuleLevels:
    """Usual level of each module. The arrays are shared with the rules, and never change.

    Args:
        of_layer: (layers,) the module of each layer.
        logarithms: (modules,) natural logarithm of the usual L2 norm of its layers together.
        known: (modules,) whether there were enough samples.
    """

    of_layer: IndexArray
    logarithms: FloatArray
    known: BoolArray

    def of_layers(self, layers: IndexArray, shares: FloatArray) -> FloatArray:
        """Return (layers,) the usual L2 norm of some layers.

        NaN where it is not known, also where only some of the layers of a module are given.

        Args:
            layers: Which ones.
            shares: (layers,) what they have to one another, say their medians; NaN of one of which
                nothing is known.
        """
        found = np.full(len(layers), np.nan)
        there = np.flatnonzero(layers < len(self.of_layer))
        own = self.of_layer[layers[there]]
        size = len(self.known)
        is_whole = np.bincount(own, minlength=size) == np.bincount(self.of_layer, minlength=size)
        given = np.nan_to_num(shares[there], nan=0.0, posinf=0.0)
        largest = np.zeros(size)
        np.maximum.at(largest, own, given)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            parts = given / largest[own]  # scaled first: squares may leave the range of float64
            together = np.sqrt(np.bincount(own, weights=parts * parts, minlength=size))
            levels = np.where(self.known & is_whole, np.exp(self.logarithms), np.nan)
            usual = levels[own] * parts / together[own]
        found[there] = np.where(given > 0.0, usual, np.nan)
        return found
