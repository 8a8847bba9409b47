"""The gradient of one module is too large or too small: multiplied on its way to the optimizer."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from benchmarks.alerts.faults.fault import LOUD, OnReduced, Site, expect
from benchmarks.alerts.recorded import Rows
from benchmarks.alerts.recording import Gradients

_GROWN: Final = math.log(80.0)
_LONGEST: Final = 350
"""A drift goes on until it is a factor of 80, or for so many steps."""


class GradientScaled(OnReduced):
    """One module's gradient is multiplied from a step on, or at one step only.

    Args:
        site: Where it is put.
        factor: What it is multiplied by.
        once: Whether only at one step.
    """

    kind = "spike"
    rules: tuple[str, ...] = LOUD

    def __init__(self, site: Site, factor: float, *, once: bool = False) -> None:
        self.factor: float = factor
        super().__init__(site)
        if once:
            self.last_step = self.step

    def choose(self, site: Site) -> None:
        self.module = self.choose_module(site)

    def multiplier(self, step: int) -> float:
        del step
        return self.factor

    def change(self, step: int, gradients: Gradients) -> Gradients:
        for name in self.layers:
            if name in gradients:
                gradients[name] = gradients[name] * self.multiplier(step)
        return gradients

    def check(self, healthy: Rows, bad: Rows) -> None:
        own = self.places()
        before, after = healthy.column("l2")[0], bad.column("l2")[0]
        expect(after[own] / before[own], self.multiplier(self.step), "ratio of the module's norms")
        others = np.delete(np.arange(len(before)), own)
        assert np.array_equal(before[others], after[others], equal_nan=True), "others differ"


class Vanishing(GradientScaled):
    """One module's gradient is as good as gone."""

    kind = "vanishing"
    rules = ("vanishing",)


class Dead(GradientScaled):
    """One module's gradient is zero from a step on."""

    kind = "dead_layer"
    rules = ("dead_layer", "vanishing")

    def __init__(self, site: Site) -> None:
        super().__init__(site, 0.0)

    def check(self, healthy: Rows, bad: Rows) -> None:
        own = self.places()
        assert (healthy.column("l2")[0][own] > 0).all(), "was not alive"
        assert (bad.column("l2")[:, own] == 0).all(), "is not dead"


class Drift(GradientScaled):
    """One module's gradient grows or shrinks by a factor per step.

    Args:
        site: Where it is put.
        factor: Factor per step.
    """

    kind = "drift"
    rules: tuple[str, ...] = LOUD
    is_gradual = True

    def __init__(self, site: Site, factor: float) -> None:
        self.length = min(_LONGEST, round(_GROWN / abs(math.log(factor))))
        super().__init__(site, factor)
        if factor < 1:
            self.rules = ("vanishing",)

    def multiplier(self, step: int) -> float:
        return float(self.factor) ** (step - self.step + 1)
