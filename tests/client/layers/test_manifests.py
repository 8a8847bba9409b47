"""Manifests are declared once per set of layers, and describe it."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch._layers.layers import Layer, find_layers
from gradwatch._layers.manifests import Manifests
from gradwatch._layers.pieces import find_pieces, piece_slices
from gradwatch_wire import Column, Manifest, Stats, encode_body
from gradwatch_wire.columns import STATISTIC_COLUMNS
from gradwatch_wire.limits import MAX_MANIFESTS, MAX_RECORD_BYTES


def layers() -> list[Layer]:
    """Six layers of several sizes and dtypes."""
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(4), nn.Linear(5, 1, dtype=torch.bfloat16))
    return find_layers(model, None, None)


def gradients(*indices: int) -> list[torch.Tensor]:
    made = layers()
    return [torch.ones_like(made[index].parameter) for index in indices]


def declared(manifests: Manifests, *indices: int, ordered: bool = False) -> Manifest:
    number, (manifest,) = manifests.find(indices, gradients(*indices), ordered=ordered)
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


def test_a_manifest_has_the_decay_of_each_second_moment() -> None:
    made = layers()
    given = [layer.parameter for layer in made]
    groups: list[dict[str, Any]] = [{"params": given[:2]}]
    adam = torch.optim.AdamW([*groups, {"params": given[2:3], "betas": (0.9, 0.95)}])
    of_adam = declared(Manifests(made, {}, optimizers=[adam]), 0, 2)
    with_sgd = [adam, torch.optim.RMSprop(given[3:4], alpha=0.9), torch.optim.SGD(given[4:5])]
    of_all = declared(Manifests(made, {}, optimizers=with_sgd), 0, 2, 3, 4, 5)
    of_sgd = declared(Manifests(made, {}, optimizers=with_sgd), 4)

    assert of_adam.optimizer == "AdamW"
    assert of_adam.beta2 is not None
    assert of_adam.beta2.unpack() == [0.999, 0.95]
    assert of_all.optimizer == ""
    assert of_all.beta2 is not None
    assert of_all.beta2.unpack() == pytest.approx([0.999, 0.95, 0.9, nan, nan], nan_ok=True)
    assert (of_sgd.optimizer, of_sgd.beta2) == ("SGD", None)


def test_a_set_of_layers_is_declared_once() -> None:
    """Ids count from 1; another order of the same layers is another set."""
    manifests = Manifests(layers(), {})
    declared(manifests, 0, 1, 2)

    assert declared(manifests, 0, 1).manifest_id == 2
    assert manifests.find((0, 1), gradients(0, 1), ordered=False) == (2, [])
    assert declared(manifests, 1, 0).manifest_id == 3
    assert manifests.find((1, 0), gradients(1, 0), ordered=False) == (3, [])
    assert manifests.find((0, 1), gradients(0, 1), ordered=False) == (2, [])


def test_groups_hold_places_in_the_manifest() -> None:
    groups = {"host": frozenset({0, 3, 5}), "seed": frozenset({4})}
    manifest = declared(Manifests(layers(), groups), 5, 1, 3)

    assert manifest.groups == {"host": (0, 2), "seed": ()}


def test_the_same_layers_are_declared_anew_once_their_order_is_known() -> None:
    manifests = Manifests(layers(), {})

    assert declared(manifests, 0, 2).order == "registration"
    assert declared(manifests, 0, 2, ordered=True).order == "forward"
    assert manifests.find((0, 2), gradients(0, 2), ordered=True) == (2, [])
    assert manifests.find((0, 2), gradients(0, 2), ordered=False) == (1, [])


def test_sets_without_end_take_bounded_memory() -> None:
    """The oldest is forgotten; when it returns it has a new id, which is never used twice."""
    manifests = Manifests(layers(), {})
    sets = [tuple(i for i in range(6) if bits >> i & 1) for bits in range(1, 64)]
    sets += [tuple(reversed(indices)) for indices in sets if len(indices) > 1]
    first = [declared(manifests, *indices).manifest_id for indices in sets]

    assert first == list(range(1, len(sets) + 1))
    assert manifests.find(sets[-1], gradients(*sets[-1]), ordered=False) == (len(sets), [])
    assert (
        manifests.find(sets[-MAX_MANIFESTS], gradients(*sets[-MAX_MANIFESTS]), ordered=False)[1]
        == []
    )
    assert declared(manifests, *sets[0]).manifest_id == len(sets) + 1
    assert declared(manifests, *sets[-MAX_MANIFESTS]).manifest_id == len(sets) + 2


def test_layers_whose_dtype_has_changed_are_declared_anew() -> None:
    """C51: `model.double()` keeps the parameters and changes what they are."""
    made = nn.Linear(2, 3)
    manifests = Manifests(find_layers(made, None, None), {})
    before = manifests.find((0, 1), list(made.parameters()), ordered=False)[1][0]
    made.double()
    after = manifests.find((0, 1), list(made.parameters()), ordered=False)[1][0]

    assert before.dtypes == ("float32", "float32")
    assert after.dtypes == ("float64", "float64")
    assert manifests.find((0, 1), list(made.parameters()), ordered=False) == (2, [])


def test_a_set_in_pieces_has_a_manifest_for_each() -> None:
    manifests = Manifests(layers(), {"host": frozenset({0, 3, 5})}, num_pieces=2)
    number, (one, two) = manifests.find((5, 0, 3), gradients(5, 0, 3), ordered=True)

    assert (number, one.manifest_id, two.manifest_id) == (1, 1, 2)
    assert (one.names, two.names) == (("2.bias",), ("0.weight", "1.bias"))
    assert (one.groups, two.groups) == ({"host": (0,)}, {"host": (0, 1)})
    assert manifests.find((5, 0, 3), gradients(5, 0, 3), ordered=True) == (1, [])
    assert manifests.find((0, 1), gradients(0, 1), ordered=True)[0] == 3


@pytest.mark.parametrize(
    ("count", "name_bytes", "num_pieces"),
    [(1, 10, 1), (148, 500, 1), (16_800, 8, 1), (21_000, 8, 2), (30_000, 95, 3), (32_768, 512, 10)],
)
def test_so_many_pieces_that_each_record_fits(count: int, name_bytes: int, num_pieces: int) -> None:
    """Names decide, or columns; at the limits of both, with a group of all and a shard of each."""
    parameter = nn.Parameter(torch.ones(2, 2))
    made = [Layer(f"{number:0>{name_bytes}}", parameter) for number in range(count)]
    assert find_pieces(made, 1, 1) == num_pieces

    shards = ("Shard(1) 1023/1024",) * count
    for piece in piece_slices(count, num_pieces):
        names = tuple(layer.name for layer in made[piece])
        numel = Column.pack("<u8", [1 << 40] * len(names))
        manifest = Manifest(
            manifest_id=1 << 40,
            names=names,
            numel=numel,
            dtypes=("float8_e5m2fnuz",) * len(names),
            shards=shards[piece],
            groups={"all": tuple(range(len(names)))},
        )
        columns = {column.name: numel for column in STATISTIC_COLUMNS}
        for record in (manifest, Stats(manifest_id=1, step=1, columns=columns)):
            assert len(encode_body(record)[1]) < MAX_RECORD_BYTES - 1000


@pytest.mark.slow
def test_more_pieces_than_a_step_may_have_are_refused() -> None:
    layers = [Layer(f"{number:0>500}", nn.Parameter(torch.ones(1))) for number in range(20_000)]

    with pytest.raises(
        ValueError, match=r"^model: 20000 layers with names of up to 500 .*include="
    ):
        find_pieces(layers, 0, 20)


@pytest.mark.slow
def test_names_of_modules_take_room_from_the_layers() -> None:
    layers = [Layer(f"{number:0>95}", nn.Parameter(torch.ones(1))) for number in range(30_000)]

    assert find_pieces(layers, 0, 1, ["block"]) == 3
    assert find_pieces(layers, 0, 1, ["m" * 500] * 1900) == 5
    with pytest.raises(ValueError, match=r"^activations: the names of 4096 modules .* fewer$"):
        find_pieces(layers, 0, 1, ["m" * 500] * 4096)


def test_layers_that_lose_their_gradient_are_frozen_or_unused() -> None:
    """Those that had one before: by `requires_grad`, as it is when the set is looked for."""
    known = layers()
    manifests = Manifests(known, {})
    declared(manifests, 0, 1, 2, 3)
    known[1].parameter.requires_grad_(False)

    manifest = declared(manifests, 0, 3)
    assert (manifest.frozen, manifest.unused) == (("0.bias",), ("1.weight",))
    assert manifests.find((0, 3), gradients(0, 3), ordered=False) == (2, [])
    known[2].parameter.requires_grad_(False)
    manifest = declared(manifests, 0, 3)
    assert (manifest.frozen, manifest.unused) == (("0.bias", "1.weight"), ())
    # 4 and 5 never had one: nothing is told of them, and of all layers there is nothing to tell.
    assert manifests.find((0, 1, 2, 3), gradients(0, 1, 2, 3), ordered=False) == (1, [])


def test_what_is_not_known_to_be_frozen_or_unused_is_neither() -> None:
    """A layer that left the model or the optimizer, or whose gradient cannot be measured."""
    known = layers()
    manifests = Manifests(known, {})
    every = (0, 1, 2, 3)
    manifests.find(every, gradients(*every), ordered=False, optimizer=0, members=every)
    gone = nn.Parameter(torch.empty(0), requires_grad=False)
    known[1] = Layer(known[1].name, gone)  # as the tracker has it
    known[2].parameter.grad = torch.zeros_like(known[2].parameter)

    _, (manifest,) = manifests.find(
        (0,), gradients(0), ordered=False, optimizer=0, members=frozenset((0, 1, 2))
    )
    assert (manifest.frozen, manifest.unused) == ((), ())


def test_optimizers_have_idle_layers_of_their_own() -> None:
    manifests = Manifests(layers(), {})
    one, other = frozenset((0, 1)), frozenset((2, 3))
    for optimizer, members in enumerate((one, other)):
        own = tuple(sorted(members))
        _, (manifest,) = manifests.find(
            own, gradients(*own), ordered=False, optimizer=optimizer, members=members
        )
        assert (manifest.frozen, manifest.unused) == ((), ())

    _, (manifest,) = manifests.find((3,), gradients(3), ordered=False, optimizer=1, members=other)
    assert manifest.unused == ("1.weight",)


def test_the_pieces_of_a_set_share_its_idle_layers() -> None:
    manifests = Manifests(layers(), {}, num_pieces=2)
    every = (0, 1, 2, 3, 4, 5)
    manifests.find(every, gradients(*every), ordered=False)

    _, made = manifests.find((0, 1), gradients(0, 1), ordered=False)
    assert [own.names for own in made] == [("0.weight",), ("0.bias",)]
    assert [own.unused for own in made] == [("1.weight", "1.bias"), ("2.weight", "2.bias")]
