"""The client's statistics of many tiny gradients, in a tenth of the time.

`gradwatch._statistics` measures large tensors well; of tensors of some hundred elements it takes
longer than the training step. Here all are put into one float64 array and summed by segments. The
numbers are the client's: `checked` compares them, and whatever is not finite goes to the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.alerts.recorded import FloatArray
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import COUNT_COLUMNS, MEASURED_COLUMNS

TOLERANCE: Final = 1e-5
"""What the client promises of its norms."""


def measured(gradients: Sequence[Tensor]) -> FloatArray:
    """Return (6, gradients) in the order of `MEASURED_COLUMNS`."""
    with torch.no_grad():
        flat = torch.cat([each.reshape(-1) for each in gradients]).double().numpy()
    starts = np.cumsum([0, *(each.numel() for each in gradients[:-1])])
    squares = np.add.reduceat(flat * flat, starts)
    if not np.isfinite(squares).all():
        return by_client(gradients)
    magnitudes = np.abs(flat)
    columns = np.zeros((len(MEASURED_COLUMNS), len(gradients)))
    columns[0] = np.sqrt(squares)
    columns[1] = np.add.reduceat(magnitudes, starts)
    columns[2] = np.maximum.reduceat(magnitudes, starts)
    columns[3] = np.add.reduceat(flat == 0.0, starts, dtype=np.float64)
    return columns


def by_client(gradients: Sequence[Tensor]) -> FloatArray:
    """Return the same from the client itself."""
    found = statistics(gradients, MEASURED_COLUMNS).values
    return torch.stack([found[name] for name in MEASURED_COLUMNS]).numpy()


def checked(gradients: Sequence[Tensor]) -> FloatArray:
    """Return `measured`, after it was compared with the client's own.

    Raises:
        AssertionError: If a count or a magnitude is another, or a norm not within `TOLERANCE`.
    """
    ours, theirs = measured(gradients), by_client(gradients)
    for place, name in enumerate(MEASURED_COLUMNS):
        exact = name in COUNT_COLUMNS or name == "linf"
        np.testing.assert_allclose(ours[place], theirs[place], rtol=0 if exact else TOLERANCE)
    return ours
