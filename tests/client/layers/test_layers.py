"""Choice of the watched parameters, and their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from gradwatch._layers.groups import find_groups
from gradwatch._layers.layers import find_layers
from gradwatch_wire.limits import MAX_GROUPS, MAX_LAYERS, MAX_NAME_BYTES


def compiled(module: nn.Module) -> Any:
    """A module as `torch.compile` wraps it, without the machine code."""
    return torch.compile(module, backend="eager")


class Block(nn.Module):
    """Two named layers and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))
        self.norm = nn.LayerNorm(2)


class Model(nn.Module):
    """An embedding, two blocks in a list, and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(2, 3)
        self.head.weight = self.embedding.weight


def names(
    made: nn.Module | Mapping[str, nn.Module], include: Any = None, exclude: Any = None
) -> list[str]:
    return [layer.name for layer in find_layers(made, include, exclude)]


def test_names_are_those_of_the_users_own_model() -> None:
    """As `named_parameters` spells them, a shared weight once."""
    made = Model()
    layers = find_layers(made, None, None)

    assert [layer.name for layer in layers] == [name for name, _ in made.named_parameters()]
    assert [layer.parameter for layer in layers] == list(made.parameters())
    assert layers[0].name == "embedding.weight"
    assert "head.weight" not in names(made)
    assert names(made)[1:4] == [
        "blocks.0.scale",
        "blocks.0.attention.weight",
        "blocks.0.attention.bias",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", [DistributedDataParallel, compiled, checkpoint_wrapper])
def test_wrappers_leave_no_trace_in_the_names(
    one_process: None, wrapper: Callable[[nn.Module], nn.Module]
) -> None:
    made, inside = Model(), Model()
    expected = names(made)
    inside.blocks[0] = wrapper(inside.blocks[0])

    assert names(wrapper(made)) == expected
    assert names(inside) == expected


@pytest.mark.slow
def test_wrappers_inside_each_other_leave_no_trace(one_process: None) -> None:
    """The usual order of a large training script: checkpoint, compile, DDP."""
    made = Model()
    expected = names(made)
    made.blocks[0] = compiled(checkpoint_wrapper(made.blocks[0]))

    assert names(compiled(DistributedDataParallel(made))) == expected


def test_a_child_that_the_user_called_module_keeps_its_name() -> None:
    made = nn.Module()
    made.module = nn.Linear(2, 2, bias=False)

    assert names(made) == ["module.weight"]


def test_a_dict_of_models_prefixes_each_with_its_key() -> None:
    """A GAN's two; what they share is watched once, under the first name."""
    shared = nn.Linear(2, 2, bias=False)
    made = {
        "generator": nn.Sequential(shared, nn.Linear(2, 1)),
        "critic": compiled(nn.Sequential(shared, nn.ReLU(), nn.Linear(2, 1))),
    }

    assert names(made) == [
        *("generator.0.weight", "generator.1.weight", "generator.1.bias"),
        *("critic.2.weight", "critic.2.bias"),
    ]


def test_absent_and_frozen_parameters() -> None:
    """A missing bias has no name; a frozen layer has: it may be unfrozen later."""
    made = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    made[0].weight.requires_grad = False

    assert names(made) == ["0.weight", "1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ("blocks.*", None, 10),
        ("*.weight", None, 5),
        (["embedding.*", "head.*"], None, 2),
        (("*.bias",), "head.*", 4),
        (None, ["*.bias", "*.scale"], 5),
        (iter(["head.bias"]), None, 1),
        ("blocks.[0]*", "*norm*", 3),
    ],
)
def test_patterns_choose_the_layers(include: Any, exclude: Any, expected: int) -> None:
    chosen = names(Model(), include, exclude)

    assert len(chosen) == expected
    assert chosen == [name for name in names(Model()) if name in chosen]


def sharded() -> nn.Module:
    """A layer whose weight is a DTensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    made = nn.Linear(2, 2)
    mesh = init_device_mesh("cpu", (1,))
    made.weight = nn.Parameter(distribute_tensor(made.weight.detach(), mesh, [Shard(0)]))
    return made


def with_name(name: str) -> nn.Module:
    """A model with a child of any name."""
    made = nn.Module()
    made.add_module(name, nn.Linear(1, 1))
    return made


def many(count: int) -> nn.Module:
    """A model of so many tiny parameters."""
    made = nn.Module()
    parameter = torch.zeros(())
    for number in range(count):
        made.register_parameter(f"p{number}", nn.Parameter(parameter))
    return made


@pytest.mark.parametrize(
    ("made", "include", "exclude", "error", "message"),
    [
        (None, None, None, TypeError, "model: a torch.nn.Module or a dict .* got NoneType"),
        ([nn.Linear(1, 1)], None, None, TypeError, "model: .* got list"),
        ({"a": 3}, None, None, TypeError, "model: 'a' is no torch.nn.Module but int"),
        ({3: nn.Linear(1, 1)}, None, None, TypeError, "model: names .* are strings, got 3"),
        ({}, None, None, ValueError, "model: none of its 0 watched parameters"),
        (nn.ReLU(), None, None, ValueError, "model: none of its 0 watched parameters"),
        (
            nn.Linear(1, 1).requires_grad_(False),
            *(None, None, ValueError, "model: none of its 2 watched parameters requires a grad"),
        ),
        (
            nn.Linear(1, 1, dtype=torch.complex64),
            *(None, None, ValueError, "model: weight is torch.complex64; complex gradients"),
        ),
        (
            nn.LazyLinear(1),
            *(None, None, ValueError, "model: weight is not initialized; run a forward pass"),
        ),
        (
            {"a": nn.ModuleDict({"b": nn.Linear(1, 1)}), "a.b": nn.Linear(1, 1)},
            *(None, None, ValueError, "model: two parameters are called 'a.b.weight'"),
        ),
        (
            with_name("n" * MAX_NAME_BYTES),
            *(None, None, ValueError, f"model: the name 'n+'... is no text of at most {512} bytes"),
        ),
        (with_name("\ud800"), None, None, ValueError, r"model: the name '\\ud800.weight'"),
        (Model(), "head", None, ValueError, "include: pattern 'head' matches none of 12 names"),
        (Model(), ["*", "x*"], None, ValueError, "include: pattern 'x\\*' matches none"),
        (Model(), None, "x", ValueError, "exclude: pattern 'x' matches none of 12 names"),
        (Model(), None, "*", ValueError, "include, exclude: they leave none of the model's 12"),
        (Model(), [], None, ValueError, "include, exclude: they leave none"),
        (Model(), 5, None, TypeError, "include: one item or a list of them, got int"),
        (Model(), None, [5], TypeError, "exclude: patterns are strings, got int"),
        (Model(), nn.Parameter(torch.ones(2)), None, TypeError, "include: .* got Parameter"),
    ],
)
def test_what_cannot_be_watched_is_one_clear_error(
    made: Any, include: Any, exclude: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        find_layers(made, include, exclude)

    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_sharded_parameter_is_a_layer_like_any_other(one_process: None) -> None:
    assert names(sharded()) == ["weight", "bias"]


@pytest.mark.slow
def test_more_layers_than_the_wire_carries_are_refused_unless_chosen_from() -> None:
    """The limit counts what is watched."""
    made = many(MAX_LAYERS + 1)

    with pytest.raises(ValueError, match=f"model: {MAX_LAYERS + 1} parameters, at most"):
        find_layers(made, None, None)
    assert len(names(made, None, "p0")) == MAX_LAYERS


def groups(given: Any) -> dict[str, set[str]]:
    """The names of the layers in each group of the model."""
    layers = find_layers(Model(), None, None)
    found = find_groups(given, layers)
    return {name: {layers[index].name for index in found[name]} for name in found}


def test_groups_are_given_by_patterns() -> None:
    assert groups(None) == {}
    assert groups({"first": "blocks.0.*", "heads": ["head.*", "embedding.*"]}) == {
        "first": {name for name in names(Model()) if name.startswith("blocks.0.")},
        "heads": {"head.bias", "embedding.weight"},
    }
    assert groups({"a": "head.*", "b": "*.bias"})["a"] < groups({"b": "*.bias"})["b"]


def test_groups_are_given_by_parameters() -> None:
    """The parameters themselves, alone, in a list or from a generator, mixed with patterns."""
    made = Model()
    layers = find_layers(made, None, None)
    found = find_groups(
        {
            "one": made.head.bias,
            "tied": [made.head.weight],
            "block": made.blocks[0].parameters(),
            "mixed": [made.head.bias, "embedding.*"],
        },
        layers,
    )

    assert {layers[index].name for index in found["one"]} == {"head.bias"}
    assert {layers[index].name for index in found["tied"]} == {"embedding.weight"}
    assert len(found["block"]) == 5
    assert found["mixed"] == found["one"] | found["tied"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["a"], TypeError, "groups: a dict of names to patterns or parameters, got list"),
        ("a", TypeError, "groups: a dict of names .* got str"),
        ({5: "*"}, TypeError, "groups: names are strings, got 5"),
        ({"a": 5}, TypeError, "groups: 'a': one item or a list of them, got int"),
        ({"a": None}, TypeError, "groups: 'a': one item or a list of them, got NoneType"),
        ({"a": [5]}, TypeError, "groups: 'a' has to hold patterns or parameters"),
        ({"a": nn.Linear(1, 1)}, TypeError, "groups: 'a': one item .* got Linear"),
        ({"a": []}, ValueError, "groups: 'a' matches no watched parameter"),
        ({"a": "x"}, ValueError, "groups: 'a': pattern 'x' matches none of 12 names"),
        ({"a": ["*", "x"]}, ValueError, "groups: 'a': pattern 'x' matches none"),
        ({"a": [torch.ones(2)]}, ValueError, "groups: 'a' matches no watched parameter"),
        ({"g" * 513: "*"}, ValueError, "groups: the name 'ggg.*at most 512 bytes"),
        (
            {str(number): "*" for number in range(MAX_GROUPS + 1)},
            *(ValueError, f"groups: at most {MAX_GROUPS}, got {MAX_GROUPS + 1}"),
        ),
    ],
)
def test_a_wrong_group_is_one_clear_error(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        groups(given)

    assert type(caught.value) is error


def test_a_parameter_that_is_not_watched_makes_no_group() -> None:
    """A group of an excluded layer would stay empty without a word."""
    made = Model()
    layers = find_layers(made, None, "head.*")

    with pytest.raises(ValueError, match=re.escape("groups: 'a' matches no watched parameter")):
        find_groups({"a": [made.head.bias]}, layers)
