"""The last good step: the one whose checkpoint to go back to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.frames.window import Series
from gradwatch_wire.health import Severity


def last_good_step(series: Series, firing: Sequence[Alert]) -> int | None:
    """Return the newest step with a finite norm, before all critical alerts that fire.

    None if that is not known: the window has no such step, or began after the first bad one. What
    a rule knows to have been right is taken from it. Steps of before a jump back are left out, as
    their numbers came again.

    Args:
        series: Numbers per step of the window.
        firing: The alerts that fire.
    """
    ends = [_last_good_of(alert) for alert in firing if alert.severity is Severity.CRITICAL]
    end, is_certain = min(ends, default=(None, False))
    back = np.flatnonzero(np.diff(series.steps) <= 0)
    own = slice(int(back[-1]) + 1 if len(back) else 0, None)
    steps = series.steps[own]
    good = steps[series.known[own] & np.isfinite(series.total_norm[own])]
    if end is not None:
        good = good[good <= end]
    if len(good):
        return int(good[-1])
    return end if is_certain else None


def _last_good_of(alert: Alert) -> tuple[int, bool]:
    """Return the last step that may have been good, and whether that is certain."""
    last = alert.origin.last_good_step
    return (alert.first_step - 1, False) if last is None else (last, True)
