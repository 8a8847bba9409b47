"""Layers that join a training or leave it, and modules that are zero."""

from __future__ import annotations

import numpy as np
import pytest

from gradwatch_server.core.judge.activity import LEFT_FRAMES, Presence, Zeros
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


def test_frames_in_a_row_are_those_before_the_latest() -> None:
    presence = Presence()
    found = []
    for present in (ALL, ALL, FIRST, ALL, ALL):
        presence.add(present, NORMS, is_whole=True)
        found.append(presence.frames_in_a_row().tolist())

    assert found == [[0, 0], [1, 1], [2, 2], [3, 0], [4, 1]]


def test_a_frame_that_lacks_ranks_counts_for_no_layer() -> None:
    presence = Presence()
    for is_whole in (True, True, False, True):
        presence.add(ALL if is_whole else FIRST, NORMS, is_whole=is_whole)

    assert presence.frames_in_a_row().tolist() == [2, 2]


def told(norms: list[float]) -> tuple[list[int], list[int]]:
    """Return the frames in which one module, beside one that lives, is dead, and is paged."""
    zeros, dead, paged = Zeros(), [], []
    for frame, norm in enumerate(norms):
        zeros.add(np.array([norm, 1.0]))
        if zeros.dead()[0]:
            dead.append(frame)
        if zeros.paged()[0]:
            paged.append(frame)
    return dead, paged


@pytest.mark.parametrize(
    ("norms", "dead", "paged"),
    [
        ([1.0] * 40 + [0.0] * 4, [42, 43], [42, 43]),
        ([1.0] * 40 + [0.0] * 2 + [1.0] * 3, [], []),
        # Too young to be sure of three, and rarer than one in a million at five.
        ([1.0] * 20 + [0.0] * 6, [24, 25], []),
        # Never alive.
        ([0.0] * 60, [], []),
        # Every second frame is a zero: 20 in a row are rare by that.
        ([1.0, 0.0] * 30 + [1.0] + [0.0] * 22, [80, 81, 82], []),
        # One zero in 200 frames does not excuse the module.
        ([1.0] * 100 + [0.0] + [1.0] * 100 + [0.0] * 3, [203], [203]),
        # Absent frames are no zeros.
        ([1.0] * 40 + [float("nan")] * 9, [], []),
    ],
)
def test_a_run_of_zeros_is_judged_by_the_zeros_before(
    norms: list[float], dead: list[int], paged: list[int]
) -> None:
    assert told(norms) == (dead, paged)


def test_where_nothing_is_alive_any_death_is_paged() -> None:
    zeros = Zeros()
    for norm in [1.0] * 20 + [0.0] * 5:
        zeros.add(np.array([norm, norm]))

    assert zeros.paged().tolist() == [True, True]
    assert not zeros.is_dying


def test_a_module_is_dying_for_three_frames() -> None:
    zeros = Zeros()
    for norm in [1.0] * 40 + [0.0] * 5:
        zeros.add(np.array([norm, 1.0]))
        assert zeros.is_dying == (0 < zeros.run[0] <= 3)


@pytest.mark.parametrize(("is_other_woken", "is_paged"), [(True, False), (False, True)])
def test_an_expert_that_hands_over_to_another_is_no_dead_one(
    *, is_other_woken: bool, is_paged: bool
) -> None:
    zeros = Zeros()
    for _ in range(60):
        zeros.add(np.array([1.0, 1.0, 0.0]))
    for _ in range(10):
        zeros.add(np.array([1.0, 0.0, float(is_other_woken)]))

    assert zeros.paged().tolist() == [False, is_paged, False]
