"""The step to go back to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.frames.window import Series
from gradwatch_server.core.views.health import last_good_step
from gradwatch_wire.health import Severity

NAN = math.nan


def series(steps: list[int], *norms: float) -> Series:
    norm = np.array(norms or [1.0] * len(steps))
    one = np.ones(len(steps))
    known = np.ones(len(steps), dtype=np.bool_)
    return Series(np.array(steps, dtype=np.int64), norm, known, one, one, one)


class _Origin:
    def __init__(self, last_good_step: int | None) -> None:
        self.last_good_step = last_good_step


class _Alert:
    def __init__(
        self, first: int, severity: Severity, last_good: int | None = None, rule: str = "loss"
    ) -> None:
        self.first_step, self.severity, self.rule = first, severity, rule
        self.origin = _Origin(last_good)


def find(known: Series, *alerts: Any) -> int | None:
    return last_good_step(known, alerts)


@pytest.mark.parametrize(
    ("norms", "expected"), [((1.0, 2.0, 3.0), 12), ((1.0, 2.0, NAN), 11), ((NAN, NAN, NAN), None)]
)
def test_without_an_alert_it_is_the_newest_finite_one(
    norms: tuple[float, ...], expected: int | None
) -> None:
    assert find(series([10, 11, 12], *norms)) == expected


def test_the_earliest_fault_says_where_it_went_wrong() -> None:
    """Neither `info` nor a rule that leaves checkpoints good is a fault."""
    critical, warning = Severity.CRITICAL, Severity.WARNING
    known = series([10, 11, 12, 13])

    assert find(known, _Alert(12, critical), _Alert(13, critical)) == 11
    assert find(known, _Alert(13, critical), _Alert(11, warning)) == 10
    assert find(known, _Alert(11, Severity.INFO)) == 13
    for rule in ("liveness", "slow", "records_lost", "loss_scaler", "not_learning"):
        assert find(known, _Alert(11, critical, rule=rule)) == 13
    assert find(known, _Alert(13, critical, last_good=10)) == 10


def test_what_the_window_does_not_reach_is_not_known() -> None:
    critical = Severity.CRITICAL

    assert find(series([10, 11]), _Alert(5, critical)) is None
    assert find(series([10, 11]), _Alert(7, critical, last_good=4)) == 4
    assert find(series([])) is None


def test_steps_from_before_a_jump_back_do_not_count() -> None:
    """Step 12 of the run before it went back is another one."""
    assert find(series([11, 12, 10, 11]), _Alert(13, Severity.CRITICAL)) == 11
