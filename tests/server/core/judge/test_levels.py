"""What is usual of a layer, from what is usual of its module."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradwatch_server.core.judge.levels import ModuleLevels

NAN = math.nan


def levels(*usual: float, known: tuple[bool, ...] | None = None) -> ModuleLevels:
    """Modules of two layers each."""
    return ModuleLevels(
        np.repeat(np.arange(len(usual)), 2),
        np.log(np.array(usual)),
        np.array(known or (True,) * len(usual)),
    )


def test_a_module_is_divided_among_its_layers() -> None:
    found = levels(5.0, 1.0).of_layers(np.arange(4), np.array([30.0, 40.0, 7.0, NAN]))

    assert found[:3] == pytest.approx([3.0, 4.0, 1.0])
    assert math.isnan(found[3])


def test_what_is_not_known_is_not_made_up() -> None:
    own = levels(5.0, 1.0, known=(False, True))

    assert np.isnan(own.of_layers(np.arange(2), np.array([3.0, 4.0]))).all()
    assert np.isnan(own.of_layers(np.array([2]), np.array([3.0]))).all()
    assert np.isnan(own.of_layers(np.array([2, 3]), np.array([0.0, 0.0]))).all()
    assert np.isnan(own.of_layers(np.array([8, 9]), np.array([1.0, 1.0]))).all()


def test_no_size_is_too_large() -> None:
    """Squares of what is given may leave the range."""
    found = levels(1e200, 1e-200).of_layers(np.arange(4), np.array([3e200, 4e200, 1e-200, 0.0]))

    assert found[:3] == pytest.approx([6e199, 8e199, 1e-200], rel=1e-9)
