"""Layers that join a training, leave it, or miss a few frames."""

from __future__ import annotations

import numpy as np
import pytest

from gradwatch_server.core.judge.presence import LEFT_FRAMES, Presence
from tests.support.core import Cluster

ALL = np.array([True, True])
FIRST = np.array([True, False])
NORMS = np.array([3.0, 4.0])


def test_a_layer_is_missing_until_it_has_left_and_joins_when_it_is_back() -> None:
    presence = Presence()
    presence.add(ALL, NORMS, is_whole=True)
    for _ in range(LEFT_FRAMES):
        absence = presence.add(FIRST, NORMS, is_whole=True)
        assert absence is not None
        assert absence.missing.tolist() == [False, True]
        assert not absence.changed.any()
    absence = presence.add(FIRST, NORMS, is_whole=True)
    assert absence is not None
    assert not absence.missing.any()
    assert absence.changed.tolist() == [False, True]
    absence = presence.add(ALL, NORMS, is_whole=True)
    assert absence is not None
    assert absence.changed.tolist() == [False, True]
    assert presence.add(ALL, NORMS, is_whole=True) is None


def test_in_a_frame_that_lacks_ranks_nothing_joins_or_leaves() -> None:
    presence = Presence()
    presence.add(ALL, NORMS, is_whole=True)
    for _ in range(2 * LEFT_FRAMES):
        absence = presence.add(FIRST, NORMS, is_whole=False)
        assert absence is not None
        assert absence.missing.tolist() == [False, True]
        assert not absence.changed.any()
    assert presence.add(ALL, NORMS, is_whole=True) is None


@pytest.mark.parametrize("names", [("a.w", "a.b"), ("b.w", "a.w")])
def test_layers_that_are_thawed_are_no_explosion(names: tuple[str, str]) -> None:
    """The norm of their module, and that of all, is of more layers from then on."""
    job = Cluster(names=names)
    job.open()
    job.declare(0, names[1:])
    scatter = np.exp(np.random.default_rng(0).normal(0.0, 0.1, (300, 2)))
    for step in range(100):
        assert job.stats(0, step, [float(scatter[step, 1])]) == []
    job.declare(0, manifest_id=2)
    for step in range(100, 300):
        norms = (scatter[step] * [30.0, 1.0]).tolist()
        assert job.stats(0, step, norms, manifest_id=2) == []


def test_a_layer_that_misses_some_frames_changes_no_level() -> None:
    """Its module is not judged by the rest of it meanwhile, and nothing has jumped after."""
    job = Cluster(names=("a.w", "a.b", "b.w")).start()
    job.declare(0, ("a.b", "b.w"), manifest_id=2)
    scatter = np.exp(np.random.default_rng(0).normal(0.0, 0.1, (200, 3)))
    for step in range(200):
        norms = (scatter[step] * [30.0, 1.0, 1.0]).tolist()
        if step >= 100 and step % 2:
            assert job.stats(0, step, norms[1:], manifest_id=2) == []
        else:
            assert job.stats(0, step, norms) == []
