"""Updates: how far the last steps that were looked at moved the weights of each layer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.columns import L2, UPDATE_RMS, WEIGHT_RMS

KEPT_STEPS: Final = 12

MIN_BEFORE: Final = 4
"""Steps by which a rise is measured."""

LARGE: Final = 2.0
"""Times the usual share from which on an update is large: it seldom moves by so much unless the
learning rate does. In the one run that is on record it doubled (marin #1368)."""

STANDS_OUT: Final = 1.5
"""Times the largest of all before that an update is, in two looks at least. Measured once, over the
healthy trainings of `benchmarks/alerts`: by chance that is so in 0.7 % of all moments, and one look
at twice the usual in 12 %."""

SAME_RATE: Final = 1.25
"""Times the usual learning rate up to which that is as before."""

CLIPPED: Final = 0.5
"""Share of the usual update per gradient at which gradients are clipped by plain SGD."""

CLIPPED_STEPS: Final = 4
"""Steps that were looked at in which it has to be so: momentum follows a gradient within less."""


class Rise(NamedTuple):
    """A layer that rose above what was usual of it: its index, the step, and times the usual."""

    layer: int
    step: int
    factor: float


@dataclass(slots=True)
class UpdateHistory:
    """Last steps that showed updates: (step, learning rate, (layers,) over weight and gradient)."""

    _steps: deque[tuple[int, float, FloatArray, FloatArray]] = field(
        default_factory=lambda: deque(maxlen=KEPT_STEPS)
    )

    def add(self, frame: Frame) -> None:
        if self._steps and self._steps[-1][0] >= frame.step:  # steps went back
            self._steps.clear()
        update, weight = frame.column(UPDATE_RMS), frame.column(WEIGHT_RMS)
        ratios = _ratio(update, weight), _ratio(update, frame.column(L2))
        self._steps.append((frame.step, np.nan if frame.lr is None else frame.lr, *ratios))

    def clipped_before(self, step: int) -> tuple[int, float] | None:
        """Return since when plain SGD is clipped, and the share of the usual update, else None."""
        known = [each for each in self._steps if each[0] < step]
        if len(known) < MIN_BEFORE + CLIPPED_STEPS:
            return None
        num_layers = len(known[0][3])
        shares = np.stack([each[3][:num_layers] for each in known])
        rates = np.array([each[1] for each in known])
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            shares /= rates[:, None] * np.median(shares[:MIN_BEFORE] / rates[:MIN_BEFORE, None], 0)
        finite = np.isfinite(shares).all(axis=0)
        if not finite.any():
            return None
        of_all = np.median(shares[:, finite], axis=1)
        free = np.flatnonzero(of_all > CLIPPED)
        first = int(free[-1]) + 1 if len(free) else 0
        if len(known) - first < CLIPPED_STEPS:
            return None
        return known[first][0], float(of_all[-1])

    def large_before(self, step: int) -> Rise | None:
        """Return the layer whose update rose most before a step, None if none rose by itself."""
        known = [each for each in self._steps if each[0] < step]
        if len(known) < MIN_BEFORE + 2:
            return None
        steps, rates = [each[0] for each in known], np.array([each[1] for each in known])
        if not rates[-1] <= SAME_RATE * np.median(rates[:MIN_BEFORE]):
            return None
        num_layers = len(known[0][2])
        ratios = np.stack([each[2][:num_layers] for each in known])
        with np.errstate(over="ignore", invalid="ignore"):
            usual = np.median(ratios[:MIN_BEFORE], axis=0)
            rises = np.divide(ratios, usual, out=np.ones_like(ratios), where=usual > 0.0)
        rises[~np.isfinite(rises)] = 1.0
        rises[-1, ~_stands_out(ratios)] = 1.0
        layer = int(rises[-1].argmax()) if num_layers else 0
        if not num_layers or rises[-1, layer] < LARGE:
            return None
        ordinary = np.flatnonzero(rises[:, layer] < LARGE)
        return Rise(layer, steps[ordinary[-1] + 1], float(rises[-1, layer]))


def _ratio(update: FloatArray, size: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.divide(update, size, out=np.full_like(size, np.nan), where=size > 0.0)


def _stands_out(ratios: FloatArray) -> BoolArray:
    """Return (layers,) whose last updates, two at least, are above all before: (steps, layers)."""
    stands_out: BoolArray = np.zeros(ratios.shape[1], dtype=np.bool_)
    for count in range(2, len(ratios) - MIN_BEFORE + 1):
        before = np.nan_to_num(ratios[:-count], posinf=0.0).max(axis=0)
        stands_out |= ratios[-count:].min(axis=0) >= STANDS_OUT * before
    return stands_out
