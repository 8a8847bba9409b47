"""Manifests are declared once per set of layers, and describe it."""

from __future__ import annotations

import torch
from torch import nn

from gradwatch._layers.layers import Layer, find_layers
from gradwatch._layers.manifests import Manifests
from gradwatch_wire import Manifest
from gradwatch_wire.limits import MAX_MANIFESTS


def layers() -> list[Layer]:
    """Six layers of several sizes and dtypes."""
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(4), nn.Linear(5, 1, dtype=torch.bfloat16))
    return find_layers(model, None, None)


def gradients(*indices: int) -> list[torch.Tensor]:
    """A gradient for each of those layers."""
    made = layers()
    return [torch.ones_like(made[index].parameter) for index in indices]


def declared(manifests: Manifests, *indices: int, ordered: bool = False) -> Manifest:
    """The manifest of a set that has to be new."""
    number, manifest = manifests.find(indices, gradients(*indices), ordered=ordered)
    assert manifest is not None
    assert manifest.manifest_id == number
    return manifest


def test_a_manifest_describes_its_layers_in_order() -> None:
    """Names, sizes and dtypes stand in the order of the columns."""
    manifest = declared(Manifests(layers(), {}), 5, 0, 3)

    assert manifest.names == ("2.bias", "0.weight", "1.bias")
    assert manifest.numel.code == "<u8"
    assert manifest.numel.unpack() == [1, 6, 4]
    assert manifest.dtypes == ("bfloat16", "float32", "float32")
    assert set(manifest.columns) > {"l2", "l1", "linf", "zeros", "nans", "infs", "l2_max"}
    assert manifest.shards == ()


def test_a_set_of_layers_is_declared_once() -> None:
    """Ids count from 1; another order of the same layers is another set."""
    manifests = Manifests(layers(), {})
    declared(manifests, 0, 1)

    assert manifests.find((0, 1), gradients(0, 1), ordered=False) == (1, None)
    assert declared(manifests, 1, 0).manifest_id == 2
    assert declared(manifests, 0, 1, 2).manifest_id == 3
    assert manifests.find((1, 0), gradients(1, 0), ordered=False) == (2, None)
    assert manifests.find((0, 1), gradients(0, 1), ordered=False) == (1, None)


def test_groups_hold_places_in_the_manifest() -> None:
    """Not those in the model; a group without a member there stays, empty."""
    groups = {"host": frozenset({0, 3, 5}), "seed": frozenset({4})}
    manifest = declared(Manifests(layers(), groups), 5, 1, 3)

    assert manifest.groups == {"host": (0, 2), "seed": ()}


def test_the_same_layers_are_declared_anew_once_their_order_is_known() -> None:
    """That of registration may turn out to be that of the forward pass; readers must hear of it."""
    manifests = Manifests(layers(), {})

    assert declared(manifests, 0, 2).order == "registration"
    assert declared(manifests, 0, 2, ordered=True).order == "forward"
    assert manifests.find((0, 2), gradients(0, 2), ordered=True) == (2, None)
    assert manifests.find((0, 2), gradients(0, 2), ordered=False) == (1, None)


def test_sets_without_end_take_bounded_memory() -> None:
    """The oldest is forgotten; when it returns it has a new id, which is never used twice."""
    manifests = Manifests(layers(), {})
    sets = [tuple(i for i in range(6) if bits >> i & 1) for bits in range(1, 64)]
    sets += [tuple(reversed(indices)) for indices in sets if len(indices) > 1]
    first = [declared(manifests, *indices).manifest_id for indices in sets]

    assert first == list(range(1, len(sets) + 1))
    assert manifests.find(sets[-1], gradients(*sets[-1]), ordered=False) == (len(sets), None)
    assert (
        manifests.find(sets[-MAX_MANIFESTS], gradients(*sets[-MAX_MANIFESTS]), ordered=False)[1]
        is None
    )
    assert declared(manifests, *sets[0]).manifest_id == len(sets) + 1
    assert declared(manifests, *sets[-MAX_MANIFESTS]).manifest_id == len(sets) + 2


def test_layers_whose_dtype_has_changed_are_declared_anew() -> None:
    """C51: `model.double()` keeps the parameters and changes what they are."""
    made = nn.Linear(2, 3)
    manifests = Manifests(find_layers(made, None, None), {})
    before = manifests.find((0, 1), list(made.parameters()), ordered=False)[1]
    made.double()
    after = manifests.find((0, 1), list(made.parameters()), ordered=False)[1]

    assert before is not None
    assert before.dtypes == ("float32", "float32")
    assert after is not None
    assert after.dtypes == ("float64", "float64")
    assert manifests.find((0, 1), list(made.parameters()), ordered=False) == (2, None)
