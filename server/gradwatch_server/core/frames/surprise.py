"""Surprise: a gradient that is large beside the second moment which the optimizer divides it by.

Adam's step is bounded while its second moment follows the gradient. Where the gradient grew within
few steps the moment is behind, the step is too large, and the loss spikes one to eight steps later
(Wortsman et al. 2023, "Stable and low-precision training", who call it so for AdamW).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.window import Window

AHEAD: Final = 8
"""Steps by which a surprise may be ahead of what it causes."""

MIN_BEFORE: Final = 12
"""Frames before, from which a second moment is told."""


@dataclass(frozen=True, slots=True)
class Surprise:
    """The largest surprise of some steps.

    Args:
        layer: Index of the layer.
        step: Step of it.
        factor: Norm over root of the second moment.
    """

    layer: int
    step: int
    factor: float


def find_surprise(window: Window, beta2: FloatArray, step: int) -> Surprise | None:
    """Return the largest surprise in the eight steps before one, None if none is known.

    The second moment is the mean of the squared norms of the frames before, each with the weight
    `beta2 ** steps`: an exponential average with its bias corrected. It is of the frames whose
    norms are kept: the newest, and every eighth of those before.

    Args:
        window: Frames up to that step, or further.
        beta2: (layers,) decay of the second moment, NaN where there is none.
        step: What began at this step.
    """
    steps, frames, norms = window.rows()
    num_layers = min(norms.shape[1], len(beta2))
    norms = norms[:, :num_layers]
    decays, of_layer = np.unique(beta2[:num_layers], return_inverse=True)  # few, and powers cost
    found: Surprise | None = None
    for at in np.flatnonzero((steps >= step - AHEAD) & (steps < step)).tolist():
        is_before = steps[:at] < steps[at]
        if np.count_nonzero(is_before) < MIN_BEFORE:
            continue
        before, ages = norms[:at][is_before], (steps[at] - steps[:at])[is_before]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
            weights = frames[:at][is_before, None] * (decays ** ages[:, None])[:, of_layer]
            is_known = np.isfinite(before)
            squares = (weights * before**2).sum(axis=0, where=is_known)
            squares /= weights.sum(axis=0, where=is_known)
            factors = norms[at] / np.sqrt(squares)
        factors[~np.isfinite(factors)] = 0.0
        layer = int(factors.argmax()) if num_layers else 0
        if num_layers and factors[layer] > (found.factor if found else 0.0):
            found = Surprise(layer, int(steps[at]), float(factors[layer]))
    return found
