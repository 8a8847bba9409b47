"""The order of the forward pass, seen from backward passes, against what the model really does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch._hooks.order import ForwardOrder
from gradwatch._layers.layers import find_layers


class Model(nn.Module):
    """Six layers, registered in the order of the alphabet and called as *forward* says."""

    def __init__(self, forward: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        for name in "abcdef":
            self.add_module(name, nn.Linear(3, 3, bias=False))
        self.called = forward

    def __getitem__(self, name: str) -> nn.Module:
        return self.get_submodule(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.called(self, x)


def observe(model: nn.Module, *, passes: int = 1) -> tuple[list[str], set[str]]:
    """Names in the order that some backward passes showed, and those whose place was seen."""
    layers = find_layers(model, None, None)
    order = ForwardOrder(layers, compiled=False)
    for _ in range(passes):
        model(torch.ones(2, 3)).sum().backward()
    indices, seen = order.settle()
    order.close()
    assert sorted(indices) == list(range(len(layers)))
    short = [layer.name.removesuffix(".weight") for layer in layers]
    return [short[index] for index in indices], {short[index] for index in seen}


def in_turn(names: str) -> Callable[[Model, Tensor], Tensor]:
    """A forward pass through the named layers."""

    def forward(model: Model, x: Tensor) -> Tensor:
        for name in names:
            x = torch.tanh(model[name](x))
        return x

    return forward


@pytest.mark.parametrize("names", ["abcdef", "fedcba", "cafebd"])
def test_layers_called_in_turn_come_in_that_turn(names: str) -> None:
    """Whatever order they were registered in."""
    assert observe(Model(in_turn(names))) == (list(names), set(names))


def test_weight_and_bias_of_a_sequence_stay_together() -> None:
    """The parameters of a layer follow those of the layer before it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 3))
    order, _ = observe(model)

    assert [name.partition(".")[0] for name in order] == ["0", "0", "2", "2", "3", "3"]


def test_branches_come_in_the_order_they_were_called() -> None:
    """Both branches lie between what is before and what is after them."""

    def forward(model: Model, x: Tensor) -> Tensor:
        x = model["e"](x)
        left = torch.tanh(model["d"](torch.tanh(model["c"](x))))
        right = torch.tanh(model["b"](torch.tanh(model["a"](x))))
        return torch.tanh(model["f"](left * right))

    assert observe(Model(forward))[0] == list("ecdabf")


def test_a_residual_stream_does_not_change_the_order() -> None:
    """The shortcut's gradient is there early, the layers' are not."""

    def forward(model: Model, x: Tensor) -> Tensor:
        for name in "bdface":
            x = x + torch.tanh(model[name](x))
        return x

    assert observe(Model(forward))[0] == list("bdface")


def test_a_weight_used_twice_stands_at_its_first_use() -> None:
    """Its gradient is complete only when the earlier use has been passed."""
    assert observe(Model(in_turn("abcafa"))) == (list("abcdef"), set("abcf"))
    assert observe(Model(in_turn("fabfcde")))[0] == list("fabcde")


def test_layers_without_a_gradient_stand_before_the_next_registered_one() -> None:
    """Not used, frozen: they have a place, which is not called seen."""
    model = Model(in_turn("fdb"))
    model["d"].requires_grad_(False)

    assert observe(model) == (list("acdefb"), set("fb"))


def test_nothing_seen_is_the_order_of_registration() -> None:
    """Before any backward pass."""
    model = Model(in_turn("fed"))

    assert observe(model, passes=0) == (list("abcdef"), set())


def test_the_first_of_several_backward_passes_decides() -> None:
    """Gradient accumulation runs several before the first step."""
    routes = iter(["cab", "bac"])

    def forward(model: Model, x: Tensor) -> Tensor:
        return in_turn(next(routes))(model, x)

    model = Model(forward)

    assert observe(model, passes=2)[0][:3] == list("cab")


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_keep_their_place(reentrant: bool) -> None:
    """Recomputed segments run backward one after the other."""

    def forward(model: Model, x: Tensor) -> Tensor:
        x = model["f"](x)
        for pair in ("ed", "cb"):
            x = checkpoint(in_turn(pair), model, x, use_reentrant=reentrant)
        return torch.tanh(model["a"](x))

    assert observe(Model(forward))[0] == list("fedcba")


def test_layers_of_a_later_backward_pass_of_its_own_are_seen_then() -> None:
    """A GAN: the critic steps first, then comes the generator's pass, through both."""
    models = {"generator": nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))}
    models["critic"] = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    layers = find_layers(models, None, None)
    order = ForwardOrder(layers, compiled=False)
    names = [layer.name for layer in layers]

    models["critic"](models["generator"](torch.ones(1, 3)).detach()).sum().backward()
    _, seen = order.settle()
    assert {names[index] for index in seen} == {name for name in names if name[0] == "c"}

    models["critic"](models["generator"](torch.ones(1, 3))).sum().backward()
    indices, seen = order.settle()
    order.close()
    assert len(seen) == 8
    assert [names[index].rpartition(".")[0] for index in indices[::2]] == [
        *("generator.0", "generator.2"),
        *("critic.0", "critic.2"),
    ]


def test_a_compiled_model_is_left_alone() -> None:
    """Its backward pass tells no order, and a hook would be one thing more to trace."""
    model = nn.Linear(3, 3)
    order = ForwardOrder(find_layers(model, None, None), compiled=True)
    model(torch.ones(1, 3)).sum().backward()

    assert order.settle() == ([0, 1], frozenset())
    assert not model.weight._post_accumulate_grad_hooks


def test_no_hook_is_left_behind() -> None:
    """After `close` the parameters are as they were."""
    model = nn.Linear(3, 3)
    order = ForwardOrder(find_layers(model, None, None), compiled=False)
    assert model.weight._post_accumulate_grad_hooks
    order.close()
    model(torch.ones(1, 3)).sum().backward()

    assert not model.weight._post_accumulate_grad_hooks
    assert order.settle() == ([0, 1], frozenset())
