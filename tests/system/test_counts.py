"""No step and no record costs more calls than are written down."""

from __future__ import annotations

import json

import pytest

from tests.system.counting import COUNTS, WRITTEN_DOWN

pytestmark = pytest.mark.slow

GROWTH = 1.05

NOISE = 0.25
"""Calls of the interpreter and of libraries for one step, which come at any time."""


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_not_above_the_one_written_down(name: str) -> None:
    written_down = json.loads(WRITTEN_DOWN.read_text())[name]
    counted = COUNTS[name]()

    assert counted <= GROWTH * written_down + NOISE
