"""Idle layers: what ranks say of those that no record has, put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch_server.core.frames.idle import Idle
from gradwatch_server.core.frames.layers import Layers

NAMES = ("a", "b", "c", "d")


def idle(layers: Layers, make_manifest: Any, **names: tuple[str, ...]) -> Idle | None:
    """What a manifest of `a` says."""
    return Idle.declare(make_manifest(("a",), **names), layers)


def test_what_ranks_say_of_absent_layers_is_put_together(
    make_frame: Any, make_part: Any, make_manifest: Any
) -> None:
    """What another rank reports is not idle; what one says is unused is not frozen."""
    layers = Layers()
    layers.declare(make_manifest(NAMES))
    one = idle(layers, make_manifest, frozen=("c", "d"), unused=("b", "never declared"))
    other = idle(layers, make_manifest, unused=("d",))
    parts = [
        replace(make_part([1.0], rank=0, index=(0,)), idle=one),
        replace(make_part([1.0], rank=1, index=(0,)), idle=other),
        make_part([1.0], rank=2, index=(1,)),
    ]
    frame = make_frame(*parts)
    frame = replace(frame, present=np.array([True, True, False, False]))
    frozen, unused = frame.idle_layers()

    assert frozen.tolist() == [False, False, True, False]
    assert unused.tolist() == [False, False, False, True]


def test_a_manifest_that_names_no_idle_layer_says_nothing(make_manifest: Any) -> None:
    layers = Layers()
    layers.declare(make_manifest(NAMES))

    assert idle(layers, make_manifest) is None
    assert idle(layers, make_manifest, frozen=("never declared",)) is None
    assert layers.names == list(NAMES)


def test_ranks_are_compared_though_only_one_knows_what_is_idle(cluster: Any) -> None:
    """A rank that attached later never had the layer: its records are replicas all the same."""
    job = cluster(world=2, names=NAMES)
    for rank in range(2):
        job.open(rank)
    job.declare(0, NAMES)
    job.declare(0, ("a", "b"), manifest_id=2, frozen=("c", "d"))
    job.declare(1, ("a", "b"), manifest_id=2)
    known = [job.state.sessions[job.sessions[rank]].manifests[2] for rank in range(2)]

    assert known[0].layout is known[1].layout
    assert known[0].idle is not None
    assert known[1].idle is None
