"""Idle layers: what ranks say of those that no record has, put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch_server.core.frames.idle import LayersWithoutGradient
from gradwatch_server.core.frames.layers import Layers
from tests.support.core import Cluster, frame_of, part_of
from tests.support.records import manifest_of

NAMES = ("a", "b", "c", "d")


def idle(
    layers: Layers, make_manifest: Any, **names: tuple[str, ...]
) -> LayersWithoutGradient | None:
    """Return the layers that a manifest of `a` declares without gradient."""
    return LayersWithoutGradient.declare(make_manifest(("a",), **names), layers)


def test_what_ranks_say_of_absent_layers_is_put_together() -> None:
    layers = Layers()
    layers.declare(manifest_of(NAMES))
    one = idle(layers, manifest_of, frozen=("c", "d"), unused=("b", "never declared"))
    other = idle(layers, manifest_of, unused=("d",))
    parts = [
        replace(part_of([1.0], rank=0, index=(0,)), idle=one),
        replace(part_of([1.0], rank=1, index=(0,)), idle=other),
        part_of([1.0], rank=2, index=(1,)),
    ]
    frame = frame_of(*parts)
    frame = replace(frame, present=np.array([True, True, False, False]))
    frozen, unused = frame.idle_layers()

    assert frozen.tolist() == [False, False, True, False]
    assert unused.tolist() == [False, False, False, True]


def test_a_manifest_that_names_no_idle_layer_says_nothing() -> None:
    layers = Layers()
    layers.declare(manifest_of(NAMES))

    assert idle(layers, manifest_of) is None
    assert idle(layers, manifest_of, frozen=("never declared",)) is None
    assert layers.names == list(NAMES)


def test_ranks_are_compared_though_only_one_knows_what_is_idle() -> None:
    """A rank that attached later never had the layer: its records are replicas all the same."""
    job = Cluster(world=2, names=NAMES)
    for rank in range(2):
        job.open(rank)
    job.declare(0, NAMES)
    job.declare(0, ("a", "b"), manifest_id=2, frozen=("c", "d"))
    job.declare(1, ("a", "b"), manifest_id=2)
    known = [job.state.sessions[job.sessions[rank]].manifests[2] for rank in range(2)]

    assert known[0].layout is known[1].layout
    assert known[0].idle is not None
    assert known[1].idle is None
