"""Causes: what the run's own numbers show behind an alert, in one sentence or none."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.attribution import high_loss_ranks
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.wording import MAX_CAUSE, cut, shown
from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.frame import Frame, LateFrame
from gradwatch_server.core.frames.updates import Rise
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.judge.deviations import DeviationKind
from gradwatch_wire.columns import L2, LINF
from gradwatch_wire.names import Scalar

ONE_ELEMENT: Final = 0.97
MIN_ELEMENTS: Final = 64
"""Share of a layer's norm that one of so many elements at least carries where it stands out."""

SURPRISING: Final = 6.0
"""Times the root of the second moment from which on a gradient is told as what came before. In
healthy trainings with Adam 1.3 % of all eight steps had one as large, measured once."""

PLAIN_SGD: Final = "SGD"
"""Class whose update shows that gradients are clipped. That of Adam is as large as before."""

AHEAD: Final = 8
"""Steps by which a surprise may be ahead of what it causes."""

MIN_BEFORE: Final = 12
"""Frames before, from which a second moment is told."""


def find_cause(frame: Frame, context: Context, origin: Origin) -> str:
    """Return the most likely cause of what began at an origin, at most 80 characters."""
    if context.judge.findings is None or isinstance(frame, LateFrame):
        return ""
    return (
        _rate(context, origin.step)
        or _batch_of_one_rank(frame, context)
        or _large_update(context, origin.step)
        or _surprise(context, origin.step)
        or _clipped(context, origin.step)
        or _loss_first(context, origin.step)
        or _one_element(frame, context, origin)
    )


def _rate(context: Context, step: int) -> str:
    climb = context.judge.state.finder.lr.climb
    if climb is None or climb[2] > step:
        return ""
    before, now, since = climb
    return f"the learning rate went from at most {before:.2g} to {now:.2g} from step {since} on"


def _batch_of_one_rank(frame: Frame, context: Context) -> str:
    outlier = high_loss_ranks(frame, context.judge.usual_loss())
    if not outlier:
        return ""
    losses = {part.rank: part.scalars.get(Scalar.LOSS, math.nan) for part in frame.parts}
    others = max(loss for rank, loss in losses.items() if rank not in outlier)
    worst = losses[outlier[0]]
    return f"the loss of rank {outlier[0]} is {worst:.3g}, of the others at most {others:.3g}"


def _large_update(context: Context, step: int) -> str:
    update = context.updates.large_before(step)
    if update is None:
        return ""
    text = f"its update {update.factor:.3g} times as large from step {update.step} on, same rate"
    return f"{cut(shown(context.names[update.layer]), MAX_CAUSE - len(text) - 2)}: {text}"


def _surprise(context: Context, step: int) -> str:
    surprise = find_surprise(context.window, context.beta2, step)
    if surprise is None or surprise.factor < SURPRISING:
        return ""
    what = f"{cut(context.optimizer, 16)}'s" if context.optimizer else "its optimizer's"
    text = f"gradient {surprise.factor:.2g} times {what} average of it at step {surprise.step}"
    return f"{cut(shown(context.names[surprise.layer]), MAX_CAUSE - len(text) - 2)}: {text}"


def _clipped(context: Context, step: int) -> str:
    clipping = context.updates.clipped_before(step) if context.optimizer == PLAIN_SGD else None
    if clipping is None:
        return ""
    return (
        f"gradients clipped from step {clipping[0]} on: updates {clipping[1]:.2g} of what is usual"
    )


def _loss_first(context: Context, step: int) -> str:
    deviation = context.findings.largest(DeviationKind.LOSS)
    if deviation is None:
        return ""
    began = context.judge.step_of(deviation)
    return f"the loss rose first, at step {began}" if began < step else ""


def _one_element(frame: Frame, context: Context, origin: Origin) -> str:
    if origin.layer is None or origin.step != frame.step:
        return ""
    layer = context.names.index(origin.layer)
    if layer >= len(context.numel) or context.numel[layer] < MIN_ELEMENTS:
        return ""
    norm, largest = float(frame.column(L2)[layer]), float(frame.column(LINF)[layer])
    if not (math.isfinite(norm) and largest >= ONE_ELEMENT * norm > 0.0):
        return ""
    return "one element carries the norm of the layer: a bit flip, or one sample"


def find_surprise(window: Window, beta2: FloatArray, step: int) -> Rise | None:
    """Return the largest surprise in the eight steps before one, None if none is known.

    That is a gradient which is large beside the second moment that the optimizer divides it by: the
    loss spikes one to eight steps later (Wortsman et al. 2023, "Stable and low-precision training",
    who call it so for AdamW). The moment is the mean of the squared norms before, each with the
    weight `beta2 ** steps`, of the frames whose norms are kept: the newest, and every eighth.

    Args:
        beta2: (layers,) decay of the second moment, NaN where there is none.
        step: What began at this step.
    """
    steps, frames, norms = window.rows()
    num_layers = min(norms.shape[1], len(beta2))
    norms = norms[:, :num_layers]
    decays, of_layer = np.unique(beta2[:num_layers], return_inverse=True)  # few, and powers cost
    largest: Rise | None = None
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
        if num_layers and factors[layer] > (largest.factor if largest else 0.0):
            largest = Rise(layer, int(steps[at]), float(factors[layer]))
    return largest
