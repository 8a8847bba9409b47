"""The order of the forward pass, read from its graphs, against what the model really does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch._faults import Faults
from gradwatch._hooks.order import ForwardOrder
from gradwatch._hooks.outputs import differentiable
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


class Observed:
    """A model, and what is known of the order of its layers."""

    def __init__(self, model: nn.Module | Mapping[str, nn.Module]) -> None:
        self.layers = find_layers(model, None, None)
        self.faults = Faults()
        modules = [model] if isinstance(model, nn.Module) else list(model.values())
        self.order = ForwardOrder(modules, self.layers, self.faults)

    def present(self) -> tuple[int, ...]:
        return tuple(i for i, one in enumerate(self.layers) if one.parameter.grad is not None)

    def arrange(self) -> tuple[list[str], bool]:
        """Return the names of the layers that have a gradient in order, and if it is known."""
        indices, ordered = self.order.arrange(self.present())
        assert self.faults.last == ""
        assert sorted(indices) == list(self.present())
        return [self.layers[index].name.removesuffix(".weight") for index in indices], ordered

    def step(self, *losses: Tensor) -> tuple[list[str], bool]:
        """Train a step on the losses, one backward pass each, and return the arrangement."""
        for loss in losses:
            loss.backward()
        arranged = self.arrange()
        for layer in self.layers:
            layer.parameter.grad = None
        self.order.end_step()
        return arranged


def observe(model: nn.Module, *, steps: int = 1) -> tuple[list[str], bool]:
    observed = Observed(model)
    arranged: tuple[list[str], bool] = [], False
    for _ in range(steps):
        arranged = observed.step(model(torch.ones(2, 3)).sum())
    observed.order.close()
    return arranged


def in_turn(names: str) -> Callable[[Model, Tensor], Tensor]:
    """A forward pass through the named layers."""

    def forward(model: Model, x: Tensor) -> Tensor:
        for name in names:
            x = torch.tanh(model[name](x))
        return x

    return forward


@pytest.mark.parametrize("names", ["abcdef", "fedcba", "cafebd"])
def test_layers_called_in_turn_come_in_that_turn(names: str) -> None:
    assert observe(Model(in_turn(names))) == (list(names), True)


def test_weight_and_bias_of_a_sequence_stay_together() -> None:
    """The parameters of a layer follow those of the layer before it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 3))
    order, _ = observe(model)

    assert [name.partition(".")[0] for name in order] == ["0", "0", "2", "2", "3", "3"]


def test_branches_come_in_the_order_they_were_called() -> None:
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
    """A tied weight has one place, and that is where the forward pass met it first."""
    assert observe(Model(in_turn("abcafa"))) == (list("abcf"), True)
    assert observe(Model(in_turn("fabfcde")))[0] == list("fabcde")


def test_frozen_and_unused_layers_do_not_hinder() -> None:
    model = Model(in_turn("fdb"))
    model["d"].requires_grad_(False)

    assert observe(model) == (list("fb"), True)


def test_a_layer_that_is_unfrozen_later_finds_its_place_a_step_later() -> None:
    """The hook is gone by then, and comes back for it."""
    model = Model(in_turn("fdb"))
    model["d"].requires_grad_(False)
    observed = Observed(model)

    def step() -> tuple[list[str], bool]:
        return observed.step(model(torch.ones(2, 3)).sum())

    assert step() == (list("fb"), True)
    assert not model._forward_hooks
    model["d"].requires_grad_(True)
    assert step() == (list("bdf"), False)
    assert step() == (list("fdb"), True)
    assert not model._forward_hooks


def test_steps_without_a_gradient_do_not_end_the_search() -> None:
    """Evaluation, warm-up steps, a checkpoint that is loaded through the optimizer (C41)."""
    model = Model(in_turn("fed"))
    observed = Observed(model)
    for _ in range(40):
        with torch.no_grad():
            model(torch.ones(2, 3))
        observed.order.end_step()

    assert observed.step(model(torch.ones(2, 3)).sum()) == (list("fed"), True)


def test_a_forward_pass_that_takes_another_way_each_time_has_no_order() -> None:
    """Whichever was first, naming a layer by it would be wrong for the other."""
    routes = iter(["cab", "bac", "cab"])

    def forward(model: Model, x: Tensor) -> Tensor:
        return in_turn(next(routes))(model, x)

    model = Model(forward)
    observed = Observed(model)
    first = model(torch.ones(2, 3)).sum()

    assert observed.step(first, model(torch.ones(2, 3)).sum()) == (list("abc"), False)
    assert observed.step(model(torch.ones(2, 3)).sum()) == (list("abc"), False)


def test_sets_of_layers_that_no_graph_had_together_have_no_order() -> None:
    """Layers dropped at random: the place of one between the others was not seen."""
    model = Model(in_turn("fdb"))
    observed = Observed(model)

    assert observed.step(in_turn("fdb")(model, model(torch.ones(2, 3))).sum())[1]
    model.called = in_turn("feb")
    assert observed.step(model(torch.ones(2, 3)).sum()) == (list("bef"), False)
    assert observed.step(model(torch.ones(2, 3)).sum()) == (list("feb"), True)
    assert observed.order.arrange((1, 3, 4, 5)) == ((1, 3, 4, 5), False)  # b d e f
    model.called = in_turn("fedb")
    assert observed.step(model(torch.ones(2, 3)).sum()) == (list("fedb"), True)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_keep_their_place(reentrant: bool) -> None:
    """Inside a reentrant checkpoint there is no graph: calls are noted in the step after."""

    def forward(model: Model, x: Tensor) -> Tensor:
        x = model["f"](x)
        for pair in ("ed", "cb"):
            x = checkpoint(in_turn(pair), model, x, use_reentrant=reentrant)
        return torch.tanh(model["a"](x))

    model = Model(forward)

    assert observe(model) == ((list("abcdef"), False) if reentrant else (list("fedcba"), True))
    assert observe(model, steps=2) == (list("fedcba"), True)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_several_passes_of_a_step_through_reentrant_checkpoints_have_one_order() -> None:
    def forward(model: Model, x: Tensor) -> Tensor:
        x = model["f"](x)
        for pair in ("ed", "cb"):
            x = checkpoint(in_turn(pair), model, x, use_reentrant=True)
        return torch.tanh(model["a"](x))

    model = Model(forward)
    observed = Observed(model)
    for step in range(3):
        passes = (model(torch.ones(2, 3)).sum() for _ in range(3))
        arranged = observed.step(*passes)
        assert arranged == (list("fedcba"), True) if step else (list("abcdef"), False)


class Scaled(nn.Module):
    """Has a parameter of its own, which it uses after those of the module inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.inner = nn.Linear(3, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x) * self.scale
        return y


def test_calls_do_not_tell_when_a_module_uses_parameters_beside_those_inside_it() -> None:
    """The graph does; in a reentrant checkpoint nothing does."""
    model = Model(
        lambda model, x: checkpoint(model["f"], x + 0 * model["a"](x), use_reentrant=True)
    )
    model.add_module("f", Scaled())

    assert observe(nn.Sequential(Scaled())) == (["0.inner", "0.scale"], True)
    assert observe(model, steps=3) == (["a", "f.scale", "f.inner"], False)


def test_two_losses_over_a_shared_trunk_have_one_order() -> None:
    """Two forward and backward passes in a step, with the trunk in both (C4)."""
    heads = iter("abab")

    def forward(model: Model, x: Tensor) -> Tensor:
        return in_turn("fe" + next(heads))(model, x)

    model = Model(forward)
    observed = Observed(model)
    for _ in range(2):
        passes = (model(torch.ones(2, 3)).sum() for _ in range(2))
        assert observed.step(*passes) == (list("feab"), True)


def test_two_heads_called_from_outside_have_one_order() -> None:
    """The model itself is never called, as in Lightning's `training_step`; its children are."""
    model = Model(in_turn(""))
    observed = Observed(model)

    def step() -> tuple[list[str], bool]:
        trunk = torch.tanh(model["e"](torch.ones(2, 3)))
        losses = [model[head](trunk).sum() for head in "da"]
        losses[0].backward(retain_graph=True)
        return observed.step(losses[1])

    assert step() == (list("ade"), False)
    assert step() == (list("eda"), True)
    assert not any(module._forward_hooks for module in model.modules())


def test_layers_of_a_later_backward_pass_of_its_own_are_seen_then() -> None:
    """A GAN: the critic steps first, then comes the generator's pass, through both."""
    models = {"generator": nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))}
    models["critic"] = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    generator, critic = models.values()
    observed = Observed(models)
    arranged = []
    for _ in range(3):
        with torch.no_grad():
            fake = generator(torch.ones(1, 3))
        arranged.append(observed.step(critic(fake).sum()))
        arranged.append(observed.step(critic(generator(torch.ones(1, 3))).sum()))

    turn = [f"{name}{kind}" for name in ("0", "2") for kind in ("", ".bias")]
    of_critic = [f"critic.{name}" for name in turn]
    of_both = [f"generator.{name}" for name in turn] + of_critic
    assert arranged[::2] == [(of_critic, True)] * 3
    assert [ordered for _, ordered in arranged[1::2]] == [False, True, True]
    assert arranged[-1] == (of_both, True)


def test_a_loss_shows_the_order_of_a_model_whose_calls_do_not() -> None:
    """`collect(loss=loss)`: nodes stay readable after the backward pass."""
    model = Model(in_turn("cba"))
    observed = Observed(model)
    loss = in_turn("fe")(model, torch.ones(2, 3)).sum()
    loss.backward()
    observed.order.read(loss)

    assert observed.arrange() == (list("fe"), True)


@dataclass
class Output:
    """As libraries of models return it."""

    loss: Tensor
    states: list[Tensor]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: (None, [x]),
        lambda x: {"loss": x.sum(), "more": (3, "text")},
        lambda x: Output(x.sum(), [x]),
    ],
    ids=["tuple", "dict", "dataclass"],
)
def test_tensors_are_found_in_what_the_model_returns(wrap: Any) -> None:
    """A list in a tuple, a dict, a dataclass."""
    model = Model(lambda model, x: wrap(in_turn("cba")(model, x)))
    observed = Observed(model)
    output = model(torch.ones(2, 3))
    next(differentiable(output)).sum().backward()

    assert observed.arrange() == (list("cba"), True)


class Whole(torch.autograd.Function):
    """A function of the user's that takes the parameters of several modules."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], *(torch.ones(3, 3) for _ in "abc")


def test_a_function_that_takes_the_parameters_of_several_modules_tells_no_order() -> None:
    apply: Any = Whole.apply
    model = Model(lambda model, x: apply(x, *(model[name].weight for name in "abc")))

    assert observe(model, steps=3) == (list("abc"), False)


@pytest.mark.slow
def test_the_hook_keeps_no_output_and_no_model_alive() -> None:
    model = Model(in_turn("cab"))
    observed = Observed(model)
    output = model(torch.ones(2, 3))
    alive = weakref.ref(output)
    del output

    assert alive() is None
    known = weakref.ref(model)
    del model, observed
    gc.collect()
    assert known() is None


def test_no_hook_is_left_behind() -> None:
    """After `close` the model is as it was."""
    model = nn.Linear(3, 3)
    observed = Observed(model)
    assert model._forward_hooks
    observed.order.close()

    assert not model._forward_hooks
    assert observed.step(model(torch.ones(1, 3)).sum()) == (["weight", "bias"], False)


def compiled(module: nn.Module) -> Any:
    """A module as `torch.compile` wraps it, without the machine code."""
    return torch.compile(module, backend="eager")
