"""Columns of curves: numbers of a whole step, and numbers of each layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.closed_frame import ClosedFrame
from gradwatch_server.core.frames.rows import FRAME_COLUMNS
from gradwatch_server.curves.items import SPREAD_TABLE, USUAL_TABLE
from gradwatch_wire.columns import L1, L2

RUN_TABLE: Final = "run"
"""The table whose items are `RUN_COLUMNS`; every other table is a column of the layers."""

_READ: Final[dict[str, Callable[[ClosedFrame], float | None]]] = {
    "norm": lambda closed: closed.frame.total_norm,
    "loss": lambda closed: closed.frame.loss,
    "lr": lambda closed: closed.frame.lr,
    "loss_scale": lambda closed: closed.frame.loss_scale,
    "step_time": lambda closed: closed.frame.step_time_s,
    "noise_scale": lambda closed: closed.noise_scale,
    "score": lambda closed: None if math.isnan(closed.score) else closed.score,
    "coverage": lambda closed: closed.frame.coverage,
    "skipped": lambda closed: float(closed.skipped),
}
"""Name to what a frame has, None where that is not known. New ones go to the end."""

RUN_COLUMNS: Final = tuple(_READ)
"""Numbers of a whole step: L2 norm of all layers, loss, learning rate, loss scale, seconds, noise
scale in samples, health score, share of the ranks that are in it, 1 if a GradScaler skipped it."""


def run_numbers(closed: ClosedFrame) -> list[float | None]:
    """Return the numbers of `RUN_COLUMNS`, None where one is not known."""
    return [read(closed) for read in _READ.values()]


@dataclass(frozen=True, slots=True)
class LayerColumn:
    """A number of each layer, under the name in requests.

    Args:
        power: Exponent of the layer's elements by which the stored column is divided.
    """

    name: str
    stored: str
    power: float = 0.0

    def factor(self, numel: FloatArray) -> FloatArray:
        """Return (layers,) what the stored numbers are multiplied with, from the elements."""
        made: FloatArray = numel.clip(1.0) ** -self.power
        return made


LAYER_COLUMNS: Final = {
    column.name: column
    for column in (
        *(LayerColumn(name, name) for name in FRAME_COLUMNS),
        LayerColumn("usual", USUAL_TABLE),
        LayerColumn("spread", SPREAD_TABLE),
        LayerColumn("rms", L2, 0.5),
        LayerColumn("mean_abs", L1, 1.0),
    )
}
"""Those of frames, the usual L2 norm by the judge and its spread, and root mean square and mean
magnitude of a gradient."""
