"""Scope of an alert: its layers and ranks, and how it came to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradwatch_server.core.alerting.alert import MAX_NAMED_LAYERS, MAX_SPREAD, Alert, Spread
from gradwatch_server.core.alerting.fitting import first_names
from gradwatch_server.core.arrays import BoolArray


def with_layers(alert: Alert, layers: BoolArray, names: tuple[str, ...]) -> Alert:
    """Return the alert with the names of its layers, the origin's first.

    Args:
        alert: As it was.
        layers: (layers,) which of them are bad in it.
        names: (layers,) names; none of a rule that is about the run.
    """
    flagged = np.flatnonzero(layers) if names else np.zeros(0, dtype=np.intp)
    first = alert.origin.layer or alert.origin.first_gradient
    named = [names[i] for i in flagged[:MAX_NAMED_LAYERS]]
    if first is not None and names:
        named = [first, *(name for name in named if name != first)]
    named_layers = first_names(named, MAX_NAMED_LAYERS)
    return replace(alert, layers=named_layers, num_layers=len(flagged))


def with_ranks(alert: Alert, ranks: tuple[int, ...]) -> Alert:
    """Return the alert with further ranks that it showed on."""
    if set(ranks) <= set(alert.ranks):
        return alert
    return replace(alert, ranks=tuple(sorted({*ranks, *alert.ranks})))


def with_spread(alert: Alert, step: int) -> Alert:
    """Return the alert with how far it has come at a step, if that is farther than before."""
    known, now = alert.spread, Spread(step, alert.num_layers, len(alert.ranks))
    if known and (known[-1].num_layers, known[-1].num_ranks) == (now.num_layers, now.num_ranks):
        return alert
    return replace(alert, spread=(*known[: MAX_SPREAD - 1], now))
