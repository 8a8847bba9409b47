"""The rule about gains between blocks."""

from __future__ import annotations

import math

import pytest

from gradwatch_server.core.alerting.rules.gain import GainRule


@pytest.mark.parametrize(
    ("gains", "raised", "held", "seen"),
    [
        ([1.0, 1.0, 1.0, 1.0], False, False, True),
        ([2.0, 0.5], False, False, True),
        ([3.0, 1.0, 1.0, 1.0], False, False, True),
        ([3.0, 0.4, 1.0, 1.0], False, True, True),
        ([3.0, 0.4, 3.0, 1.0], True, True, True),
        ([3.0, None, None], True, True, True),
        ([1.0, None, None], False, False, True),
        ([math.inf, 0.0, 1.0], True, True, True),
        ([None, None], False, False, False),
        ([], False, False, False),
    ],
)
def test_gains_are_judged_by_how_many_are_outside(
    gains: list[float | None], raised: bool, held: bool, seen: bool
) -> None:
    verdict = GainRule().verdict(gains)

    assert (verdict.raised[0], verdict.held[0], verdict.seen[0]) == (raised, held, seen)


@pytest.mark.parametrize(
    ("gains", "worst"),
    [
        ([3.0, 5.0, 4.0], 1),
        ([3.0, 0.1, 5.0], 1),
        ([None, 1e9, math.inf], 2),
        ([0.0, 1e9], 0),
        ([1.9, 0.4, None], 1),
    ],
)
def test_the_worst_gain_is_the_farthest_from_one(gains: list[float | None], worst: int) -> None:
    assert GainRule().worst(gains) == worst


def test_the_worst_gain_is_one_that_broke_the_rule() -> None:
    assert GainRule(low=0.05).worst([0.1, 3.0]) == 1
