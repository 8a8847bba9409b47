"""Origin of trouble: step, rank, layer, value. Unknown parts are None, never a guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.attribution import (
    first_nonfinite,
    layer_kind,
    loss_was_bad,
    may_come_from_loss,
    nonfinite_ranks,
)
from gradwatch_server.core.alerting.forward import ForwardOrigin, find_forward, forward_was_bad
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import nonfinite_kind

NUM_FIRST_LAYERS: Final = 5
"""Names of layers that `FirstBad` has."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The first sign of an alert.

    Args:
        step: First bad step.
        rank: The one rank it began on; None when it shows on several and none can be singled out.
        ranks: Ranks it showed on before any reduction could spread it, else all it showed on.
        layer: Name of the layer, or of the transition between blocks; None when it cannot be known,
            and when it began before any gradient, in the loss or the forward pass.
        kind: `nan` or `inf` for a non-finite gradient, `weights` where ranks disagree on weights,
            a `Trouble` of liveness, else None.
        value: The layer's L2 norm there, or the transition's gain.
        threshold: The limit it broke, None where the rule has none.
        before: `(step, L2 norm)` of the same layer in the few frames before, oldest first.
        bad_loss: Of a non-finite gradient, whether the loss already was; None if it is not known.
        first_gradient: Name of the layer whose gradient was non-finite first, None when it cannot
            be known. The same as `layer` unless it began before any gradient, or may have.
        module: Name of the first module whose output was non-finite, where modules are measured and
            it began in the forward pass; else None.
        magnitude: Largest magnitude in that output, NaN or Inf; None without a module.
        magnitudes_before: `(step, magnitude)` of the same output in the few frames before.
        usual: What the value usually was, None if it is not known yet or of no matter.
        deviations: How many usual deviations it is off, on a logarithmic scale; None if `usual` is.
        notes: What else was seen at that step, a few words each; never a cause.
        farthest: Name of the layer that is farthest off, where several rose at once and `layer` is
            None for it.
        detail: What else is to be said, in words; mostly nothing.
        cause: The most likely cause that the run's own numbers show, a sentence of at most 80
            characters; empty if they show none.
        last_good_step: The last step known to have been right: it began after that, at `step` at
            the latest. None where that is not known.
        batch: What the batch of `rank` at `step` was, as the training script says; else empty.
        place: Place of `rank` in the groups of a parallel job, in words; else empty.
    """

    step: int
    rank: int | None
    ranks: tuple[int, ...]
    layer: str | None
    kind: str | None
    value: float
    threshold: float | None
    before: tuple[tuple[int, float], ...] = ()
    bad_loss: bool | None = None
    first_gradient: str | None = None
    module: str | None = None
    magnitude: float | None = None
    magnitudes_before: tuple[tuple[int, float], ...] = ()
    usual: float | None = None
    deviations: float | None = None
    notes: tuple[str, ...] = ()
    farthest: str | None = None
    detail: str = ""
    cause: str = ""
    last_good_step: int | None = None
    batch: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class NonfiniteOrigin:
    """Known facts of where something non-finite began.

    Args:
        ranks: As in `Origin`.
        layer: Index of the layer, None as in `Origin`.
        first_gradient: Index of the layer whose gradient was non-finite first, None if not known.
        bad_loss: As in `Origin`.
        forward: Where in the forward pass it began, None if it did not or that is not known.
    """

    ranks: tuple[int, ...]
    layer: int | None
    first_gradient: int | None
    bad_loss: bool | None
    forward: ForwardOrigin | None


def find_nonfinite(frame: Frame, flagged: BoolArray) -> NonfiniteOrigin:
    """Return where the flagged layers, (layers,), became non-finite.

    A loss that is NaN makes every gradient NaN, and the layer whose gradient is computed first has
    done nothing wrong. Where no loss was given, it is not known of the model's last layer whether
    that is so, unless the outputs of modules tell.

    Where steps before were not looked at and all layers are non-finite, so may be the weights since
    one of these steps: no layer and no module is to blame for that.
    """
    ranks = nonfinite_ranks(frame)
    if frame.is_after_gap and flagged[frame.present].all():
        return NonfiniteOrigin(ranks, None, None, loss_was_bad(frame, ranks), None)
    first = first_nonfinite(frame, flagged)
    bad_loss = loss_was_bad(frame, ranks)
    is_before = bad_loss
    if bad_loss is None:
        is_before = forward_was_bad(frame, ranks) or may_come_from_loss(frame, frame.nonfinite)
    forward = find_forward(frame, ranks)
    return NonfiniteOrigin(ranks, None if is_before else first, first, bad_loss, forward)


@dataclass(frozen=True, slots=True)
class FirstBad:
    """The first non-finite gradient or loss of an attempt; the keys are those of `/health`.

    `layers` are the first few of those that were non-finite, of which `layer` may not be known.
    It began after `last_good_step`, if that is known, at `step` at the latest. `batch` is what the
    training script says of the batch of that rank and step, `place` where the rank is in the groups
    of a parallel job.
    """

    step: int
    rank: int | None
    layer: str | None
    kind: str
    bad_loss: bool | None = None
    first_gradient: str | None = None
    module: str | None = None
    layers: tuple[str, ...] = ()
    num_layers: int = 0
    last_good_step: int | None = None
    batch: str = ""
    place: str = ""


def find_first_bad(frame: Frame, names: tuple[str, ...]) -> FirstBad | None:
    """Return what `/health` keeps as `first_bad` if *frame* has anything non-finite.

    Args:
        frame: A closed step.
        names: (layers,) names of its layers.
    """
    flagged = frame.nonfinite
    if flagged.any():
        nonfinite = find_nonfinite(frame, flagged)
        first = nonfinite.first_gradient
        return FirstBad(
            step=frame.bad_step,
            rank=one_rank(nonfinite.ranks),
            layer=None if nonfinite.layer is None else names[nonfinite.layer],
            kind=layer_kind(frame, int(np.flatnonzero(flagged)[-1]) if first is None else first),
            bad_loss=nonfinite.bad_loss,
            first_gradient=None if first is None else names[first],
            module=nonfinite.forward.module if nonfinite.forward else None,
            layers=tuple(names[i] for i in np.flatnonzero(flagged)[:NUM_FIRST_LAYERS]),
            num_layers=int(np.count_nonzero(flagged)),
            last_good_step=frame.last_good_step,
            batch=frame.batch_of(one_rank(nonfinite.ranks), frame.bad_step),
            place=frame.place_of(one_rank(nonfinite.ranks)),
        )
    if frame.loss is None or (kind := nonfinite_kind(frame.loss)) is None:
        return None
    ranks = nonfinite_ranks(frame)
    forward = find_forward(frame, ranks)
    return FirstBad(
        step=frame.step,
        rank=one_rank(ranks),
        layer=None,
        kind=kind,
        bad_loss=True,
        module=forward.module if forward and not frame.is_after_gap else None,
        last_good_step=frame.last_good_step,
        batch=frame.batch_of(one_rank(ranks), frame.step),
        place=frame.place_of(one_rank(ranks)),
    )


def one_rank(ranks: tuple[int, ...]) -> int | None:
    """Return the rank if it is one, else None."""
    return ranks[0] if len(ranks) == 1 else None
