"""Modules that `attach(activations=...)` chooses, and arguments that it refuses."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from gradwatch._layers.layers import find_layers
from gradwatch._layers.modules import find_modules, module_ranks


class Block(nn.Module):
    """A block with a list of its own in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self.mlp(self.norm(x))
        return mixed


class Model(nn.Module):
    """Registered in another order than it is called in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.drop = nn.Dropout(0.0)
        self.embed = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.embed(x))
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x)
        return found


def chosen(model: Any, given: Any) -> list[str]:
    return list(find_modules(given, model, find_layers(model, None, None)))


OUTLINE = ["head", "blocks.0", "blocks.1", "blocks.2", "embed"]


def test_true_are_the_blocks_and_what_stands_beside_them() -> None:
    assert chosen(Model(), True) == OUTLINE
    assert chosen({"G": Model(), "D": nn.Linear(4, 1)}, True) == [
        *(f"G.{name}" for name in OUTLINE),
        "D",
    ]


def test_true_looks_through_lists_of_lists_and_wrappers() -> None:
    stages = nn.Sequential(nn.Sequential(Block(), Block()), nn.Sequential(Block()))
    model = nn.Sequential(OrderedDict(stem=nn.Linear(4, 4), act=nn.ReLU(), stages=stages))

    assert chosen(model, True) == ["stem", "stages.0.0", "stages.0.1", "stages.1.0"]
    wrapped = Model()
    wrapped.blocks[1] = checkpoint_wrapper(Block())
    wrapped.blocks[2] = torch.compile(Block(), backend="eager")  # type: ignore[assignment]  # it is a module

    assert chosen(torch.compile(wrapped, backend="eager"), True) == OUTLINE


def test_true_of_a_model_without_parts_is_the_model() -> None:
    assert chosen(nn.Linear(2, 2), True) == ["Linear"]


def test_layers_that_are_not_watched_choose_no_module() -> None:
    """`include` and `exclude` hold here, too."""
    model = Model()
    layers = find_layers(model, None, "blocks.*")

    assert list(find_modules(True, model, layers)) == ["head", "embed"]


def test_patterns_and_modules_choose_any_module_that_is_called() -> None:
    """A list of modules is never called itself; the model has no name for a pattern to match."""
    model = Model()

    assert chosen(model, "blocks.1.*") == [f"blocks.1.{n}" for n in ("norm", "mlp", *MLP)]
    assert chosen(model, ["drop", model.head]) == ["head", "drop"]
    assert chosen(model, model.blocks) == ["blocks.0", "blocks.1", "blocks.2"]
    assert chosen(model, model.embed) == ["embed"]
    assert chosen(model, model) == ["Model"]
    assert "blocks" not in chosen(model, "*")
    assert chosen(model, None) == chosen(model, False) == []


MLP = ["mlp.0", "mlp.1", "mlp.2"]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (3, TypeError, "activations: True, patterns of module names, or modules, got int"),
        ([3], TypeError, "or modules, got a int among them"),
        (b"head", TypeError, "got bytes"),
        ("tail.*", ValueError, r"pattern 'tail.\*' matches none of"),
        ([], ValueError, "activations: 1 to 4096 modules, got 0"),
        ([nn.Linear(1, 1)], ValueError, "a Linear was given that is no part of the model"),
    ],
)
def test_what_is_wrong_is_said(given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        chosen(Model(), given)


def test_a_list_of_modules_among_others_is_refused() -> None:
    model = Model()
    with pytest.raises(ValueError, match="a ModuleList was given that is never called itself"):
        chosen(model, [model.blocks])


def test_ranks_follow_the_layers_and_what_is_inside_comes_first() -> None:
    """A shared layer is used in several places, and says nothing; without layers nothing does."""
    model = Model()
    block = model.blocks[0]
    assert isinstance(block, Block)
    modules: list[nn.Module] = [model.head, block, block.mlp, model.embed, model.drop]
    in_turn = [*model.embed.parameters(), *model.blocks.parameters(), *model.head.parameters()]

    assert module_ranks(modules, in_turn, [model]) == (3, 2, 1, 0, None)
    assert module_ranks(modules, [], [model]) == (None,) * 5
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    tied[2].weight = tied[0].weight

    assert module_ranks(list(tied), list(tied.parameters()), [tied]) == (None, 0, None)
