"""Usual norms of layers: their share of the module, and the form in which they are stored."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwatch_server.core.judge.modules import Modules, Shares
from gradwatch_server.curves.items import ROUNDED_BITS, SPREAD_TABLE, USUAL_TABLE, rounded
from tests.support.core import Cluster

NAMES = ("a.weight", "a.bias", "b.weight")


@given(st.floats(1e-37, 1e38))
def test_a_usual_norm_is_stored_within_a_fifth_of_a_percent(norm: float) -> None:
    (kept,) = rounded(np.array([norm]), ROUNDED_BITS[USUAL_TABLE])
    (coarse,) = rounded(np.array([norm]), ROUNDED_BITS[SPREAD_TABLE])

    assert kept == pytest.approx(norm, rel=0.002)
    assert coarse == pytest.approx(norm, rel=0.032)


def test_any_number_can_be_stored() -> None:
    numbers = np.array([0.0, math.nan, math.inf, 1e300, 5e-324, 1e-40])
    found = rounded(numbers, ROUNDED_BITS[USUAL_TABLE])

    assert found[[0, 2, 3, 4]].tolist() == [0.0, math.inf, math.inf, 0.0]
    assert (
        rounded(found, ROUNDED_BITS[USUAL_TABLE])[[0, 2, 3, 4]].tolist()
        == found[[0, 2, 3, 4]].tolist()
    )


def test_a_share_is_that_of_quiet_frames() -> None:
    modules, shares = Modules(), Shares()
    modules.extend(NAMES)

    def add(norms: list[float], *, is_quiet: bool) -> list[float]:
        l2 = np.array(norms)
        with np.errstate(all="ignore"):
            shares.add(l2, modules.norms(l2), modules.of_layer, is_quiet=is_quiet)
        found: list[float] = shares.values.tolist()
        return found

    assert add([3.0, -4.0, math.nan], is_quiet=True)[:2] == [0.6, 0.8]
    assert add([4.0, 3.0, 2.0], is_quiet=False) == [0.6, 0.8, 1.0]
    assert add([math.inf, 0.0, 0.0], is_quiet=False) == [0.6, 0.8, 1.0]
    assert add([4.0, 3.0, 2.0], is_quiet=True) == pytest.approx([0.7, 0.7, 1.0])
    for _ in range(1_000):
        add([3.0, 4.0, 2.0], is_quiet=True)
    assert add([4.0, 3.0, 2.0], is_quiet=True)[0] == pytest.approx(0.6 + 0.2 / 64, abs=1e-5)


def test_an_explosion_does_not_become_usual_at_once() -> None:
    job = Cluster(names=NAMES).start()
    for step in range(200):
        job.stats(0, step, [3.0, 4.0, 1.0])
    assert job.attempt.closed.judge.usual_norms() == pytest.approx([3.0, 4.0, 1.0], rel=0.01)
    for step in range(200, 260):
        job.stats(0, step, [3_000.0, 4.0, 1.0])

    usual = job.attempt.closed.judge.usual_norms()
    assert usual[0] < 30.0
    assert usual[1] / usual[0] == pytest.approx(4.0 / 3.0, rel=0.01)  # its share is as it was
    assert usual[2] == pytest.approx(1.0, rel=0.05)


def test_the_spread_is_that_of_the_module_and_a_tenth_at_least() -> None:
    job, draw = Cluster(names=NAMES).start(), random.Random(1)
    for step in range(400):
        noisy = math.exp(draw.gauss(0.0, 0.5))
        job.stats(0, step, [3.0, 4.0, noisy])

    calm, same, noisy = job.attempt.closed.judge.usual_spreads()
    assert calm == same == pytest.approx(math.exp(0.1))
    assert math.log(noisy) == pytest.approx(0.5, rel=0.3)
