"""Where a slow change of a module began, for the alerts of rules that see it late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.baselines.logarithm import natural_log
from gradwatch_server.core.alerting.baselines.onset import LEVEL_FRAMES, Onset, find_onset
from gradwatch_server.core.alerting.evaluation import NUM_BEFORE, Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.arrays import FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.norms import LARGEST

MIN_FRAMES: Final = 32
"""A shorter history says nothing of where a change began."""

NEAR_FRAMES: Final = 8
"""A rise of which most came within so many frames is sudden."""

SUDDEN: Final = 0.6
"""Share of the whole rise that is most of it, on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """When a change began.

    Args:
        step: The first step that is part of it.
        error_steps: By about how many steps that may be wrong.
    """

    step: int
    error_steps: int


def began_earlier(
    origin: Origin,
    frame: Frame,
    context: Context,
    members: IndexArray,
    *,
    sign: int,
    least_frames: int,
) -> Origin:
    """Return an origin at the step where a module's norm left its level, with how sure that is.

    Args:
        origin: That of the frame in which it was told.
        frame: This frame.
        context: What is known of the attempt.
        members: The module's layers.
        sign: 1 of a rise, -1 of a fall.
        least_frames: So old the change is known to be.
    """
    beginning = beginning_of(frame, context, members, sign=sign, least_frames=least_frames)
    return origin if beginning is None else _moved(origin, context, beginning)


def began_at(origin: Origin, context: Context, beginning: Beginning | None) -> Origin:
    """Return an origin at the step of a beginning, unless that is not before it."""
    if beginning is None or beginning.step >= origin.step:
        return origin
    return _moved(origin, context, beginning)


def beginning_of(
    frame: Frame, context: Context, members: IndexArray, *, sign: int, least_frames: int
) -> Beginning | None:
    """Return when a module's norm left its level, None without a history.

    Args:
        frame: That in which it was told.
        context: What is known of the attempt.
        members: The module's layers.
        sign: 1 of a rise, -1 of a fall.
        least_frames: So old the change is known to be.
    """
    steps, norms = _history(frame, context, members)
    if len(norms) < MIN_FRAMES:
        return None
    onset = find_onset(natural_log(norms), sign, least_frames)
    return Beginning(int(steps[onset.index]), _in_steps(onset, steps))


def _moved(origin: Origin, context: Context, beginning: Beginning) -> Origin:
    note = f"began about step {beginning.step} (± {beginning.error_steps})"
    before = _before(beginning.step, origin, context)
    return replace(origin, step=beginning.step, before=before, notes=(*origin.notes, note))


def rise_of(frame: Frame, context: Context, members: IndexArray) -> Beginning | None:
    """Return when a rise of a module began that is told at a frame, None without a history.

    What mostly came within the last few frames is sudden, however norms crept before: it began
    with the frames that were up by half of it.
    """
    steps, norms = _history(frame, context, members)
    if len(norms) < MIN_FRAMES:
        return None
    series = natural_log(norms)
    onset = find_onset(series, 1)
    level = np.median(series[max(0, onset.index - LEVEL_FRAMES) : onset.index or 1])
    rise = series[-1] - level
    before = series[-1] - np.median(series[-1 - NEAR_FRAMES : -1])
    since = series[onset.index : -1]
    is_up = onset.index >= len(series) - 1 - NEAR_FRAMES and len(since) > 0
    if before > SUDDEN * rise and not (is_up and np.median(since) - level > 0.5 * rise):
        return Beginning(frame.step, 1)
    return Beginning(int(steps[onset.index]), _in_steps(onset, steps))


def began_before(origin: Origin, context: Context, frames: int) -> Origin:
    """Return an origin so many frames before, as far as the window goes back."""
    steps = context.window.series().steps
    if frames < 1 or not len(steps):
        return origin
    began = int(steps[max(0, len(steps) - frames)])
    return replace(origin, step=began, before=_before(began, origin, context))


def _history(frame: Frame, context: Context, members: IndexArray) -> tuple[IndexArray, FloatArray]:
    """Return steps and norms of a module, oldest first, where it had a finite one above zero."""
    window = context.window
    past = window.recent(members, window.capacity)
    norms = np.vstack([past, frame.l2_max[members]])
    steps = np.append(window.series().steps, frame.step)
    largest = np.fmax.reduce(norms, axis=1)
    usable = np.isfinite(norms).any(axis=1) & ~np.isinf(norms).any(axis=1) & (largest > 0.0)
    steps, norms, largest = steps[usable], norms[usable], largest[usable]
    # Divided first: squares may leave the range. A norm below zero is none.
    shares = np.fmax(norms, 0.0) / largest[:, None]
    with np.errstate(over="ignore"):  # Inf is taken as the largest number
        whole = largest * np.sqrt((shares * shares).sum(axis=1))
    return steps, np.minimum(whole, LARGEST)


def _before(step: int, origin: Origin, context: Context) -> tuple[tuple[int, float], ...]:
    """Return the norms of the origin's layer in the few frames before a step."""
    if origin.layer is None:
        return ()
    layer = context.names.index(origin.layer)
    known = context.window.before(layer, context.window.capacity)
    return tuple(own for own in known if own[0] < step)[-NUM_BEFORE:]


def _in_steps(onset: Onset, steps: IndexArray) -> int:
    """Return the error of an onset in steps: with `every=10` a frame is ten of them."""
    per_frame = (int(steps[-1]) - int(steps[0])) / max(1, len(steps) - 1)
    return max(1, round(onset.error * per_frame))
