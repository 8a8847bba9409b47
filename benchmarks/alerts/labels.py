"""Labels: asserted on the recorded numbers of a fork, beside those of its healthy continuation."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import numpy as np

from benchmarks.alerts.faults.fault import Fault
from benchmarks.alerts.recorded import INDEXED, FaultLabel, FloatArray, Rows, steps_of

HARMFUL_SD: Final = 2.0
"""Standard deviations of the healthy loss above which a loss counts as harmed."""

_SMOOTH_STEPS: Final = 10


def part_of(rows: Rows, first: int, count: int) -> Rows:
    """Return some consecutive steps."""
    found: dict[str, Any] = {}
    steps = slice(first, first + count)
    for name in (each.name for each in fields(rows)):
        values, at = getattr(rows, name), INDEXED.get(name, name)
        if at not in INDEXED.values():
            found[name] = values[steps]
            continue
        index = steps_of(rows, at)
        values = values[(index >= first) & (index < first + count)]
        if name == at:
            values = values - (first if values.ndim == 1 else np.array([first, 0]))
        found[name] = values
    return Rows(**found)


def label(name: str, fault: Fault, healthy: Rows, bad: Rows) -> FaultLabel:
    """Return the label of a fork.

    Args:
        name: Of the variant.
        fault: The fault.
        healthy: The steps of the healthy run from the fault on, as many as the fork has.
        bad: Those of the fork.

    Raises:
        AssertionError: If the numbers are not what the label says.
    """
    fault.check(healthy, bad)
    first = first_difference(healthy, bad)
    assert (first is not None) == fault.is_in_numbers, f"{name}: differs after {first} steps"
    if fault.shows_after is not None:
        stated = fault.shows_after
        assert first == stated, f"{name}: shows after {first} steps, not {stated}"
    return FaultLabel(
        name=name,
        kind=fault.kind,
        first_step=fault.step + (first or 0),
        last_step=fault.last_step,
        module=fault.module,
        layers=fault.layers,
        ranks=fault.ranks,
        factor=fault.factor,
        rules=fault.rules,
        is_harmful=is_harmful(healthy.loss.mean(1), bad.loss.mean(1)),
        is_gradual=fault.is_gradual,
    )


def first_difference(healthy: Rows, bad: Rows) -> int | None:
    """Return after how many steps anything but the rate and the time differs, None if nothing."""
    steps = min(len(healthy), len(bad))
    differs = np.zeros(steps, dtype=np.bool_)
    for name in ("columns", "present", "trainable", "loss", "local_l2"):
        one = getattr(healthy, name)[:steps].reshape(steps, -1)
        other = getattr(bad, name)[:steps].reshape(steps, -1)
        both_nan = np.isnan(one.astype(np.float64)) & np.isnan(other.astype(np.float64))
        differs |= ~((one == other) | both_nan).all(1)
    differs[bad.own_at[:, 0]] = True
    found = np.flatnonzero(differs)
    return int(found[0]) if len(found) else None


def is_harmful(healthy: FloatArray, bad: FloatArray) -> bool:
    """Tell whether the loss of a fork is worse than chance.

    Args:
        healthy: (steps,) loss of the healthy continuation.
        bad: (steps,) that of the fork.
    """
    if not np.isfinite(bad).all():
        return True
    spread = max(float(healthy.std()), 1e-3 * abs(float(healthy.mean())))
    window = np.ones(_SMOOTH_STEPS) / _SMOOTH_STEPS
    ours, theirs = (np.convolve(each, window, "valid") for each in (healthy, bad))
    return bool((theirs > ours.max() + HARMFUL_SD * spread / np.sqrt(_SMOOTH_STEPS)).any())
