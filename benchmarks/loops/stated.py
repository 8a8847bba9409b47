"""What a framework states of a step itself, before clipping, beside what is computed here."""

from __future__ import annotations

from math import isclose, isfinite, isnan
from typing import Final

import numpy as np

from benchmarks.loops.truth import Note
from gradwatch_wire.norms import total_norm

TOLERANCE: Final = 1e-4
"""Relative difference of what frameworks compute in float32."""


def check_norm(note: Note, stated: float) -> None:
    """Compare the total norm of a note with what the framework says of the same step.

    Raises:
        RuntimeError: If they differ.
    """
    own = float(total_norm(np.array(list(note.layers.values())), np))
    if not (isclose(own, stated, rel_tol=TOLERANCE) or (isnan(own) and isnan(stated))):
        msg = f"step {note.step}: the framework states a norm of {stated:g}, computed {own:g}"
        raise RuntimeError(msg)


def check_loss(note: Note, stated: float) -> None:
    """Compare the loss with what the framework logs; the Trainer replaces a NaN by a mean.

    Raises:
        RuntimeError: If they differ.
    """
    own = note.loss
    if own is None or (isfinite(own) and not isclose(own, stated, rel_tol=TOLERANCE)):
        msg = f"step {note.step}: the framework states a loss of {stated:g}, computed {own}"
        raise RuntimeError(msg)
