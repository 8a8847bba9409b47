"""A hooked module can be used as any other: saved, copied, spawned, compiled."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch._faults import Faults
from gradwatch._hooks.order import ForwardOrder, ModuleHook
from gradwatch._layers.layers import find_layers


class Listener:
    """Counts what it hears of."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def hear(self, _: nn.Module, value: object) -> None:
        self.heard.append(value)

    def fail(self, _: nn.Module, value: object) -> None:
        raise RuntimeError("no")


def hooked(listener: Listener, faults: Faults) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_forward_hook(ModuleHook(listener.hear, faults))
    model.register_forward_pre_hook(ModuleHook(listener.hear, faults))
    return model


def saved(model: nn.Module) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m)), saved]
)
def test_a_copy_works_and_is_not_listened_to(duplicate: Any) -> None:
    listener, faults = Listener(), Faults()
    model = hooked(listener, faults)
    again = duplicate(duplicate(model)) if duplicate is not copy.copy else copy.deepcopy(model)
    x = torch.ones(1, 2)
    compiled: Any = torch.compile(again, backend="eager", fullgraph=True)

    assert torch.equal(again(x), compiled(x))
    assert listener.heard == []
    assert torch.equal(model(x), again(x))
    assert len(listener.heard) == 2


@pytest.mark.exhaustive
def test_a_saved_module_is_loaded_where_there_is_no_gradwatch() -> None:
    data = pickle.dumps(hooked(Listener(), Faults()))
    script = (
        "import pickle, sys, torch; sys.modules['gradwatch'] = None; "
        "model = pickle.loads(sys.stdin.buffer.read()); print(model(torch.ones(1, 2)).shape)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], input=data, capture_output=True, check=False, timeout=90
    )

    assert result.stdout.strip() == b"torch.Size([1, 2])", result.stderr


def test_an_error_of_the_listener_is_noted_and_not_raised() -> None:
    """The forward pass goes on."""
    listener, faults = Listener(), Faults()
    model = nn.Linear(2, 2)
    model.register_forward_hook(ModuleHook(listener.fail, faults))

    assert model(torch.ones(1, 2)).shape == (1, 2)
    assert faults.last == "module hook: RuntimeError('no')"


def test_a_hook_whose_listener_is_gone_does_nothing() -> None:
    listener = Listener()
    model = hooked(listener, Faults())
    del listener

    assert model(torch.ones(1, 2)).shape == (1, 2)


class Own(nn.Module):
    """A module with a forward pass of its own, which `compile` in place needs."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 1)
        self.first = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.tanh(self.first(x)))
        return y


@pytest.mark.parametrize("when", ["before", "after", "in place"])
def test_the_order_costs_no_graph_no_break_and_no_recompilation(when: str) -> None:
    """Attached after or before the compilation, for more steps than are looked at."""
    from torch._dynamo.utils import counters

    def train(*, watched: bool) -> dict[str, dict[str, int]]:
        torch.compiler.reset()
        counters.clear()
        model = Own()
        run: Any = model
        if when == "before":
            run = torch.compile(model, backend="aot_eager", fullgraph=True)
        order = layers = None
        if watched:
            layers = find_layers(run, None, None)
            order = ForwardOrder([run], layers, Faults())
        if when == "after":
            run = torch.compile(model, backend="aot_eager", fullgraph=True)
        elif when == "in place":
            model.compile(backend="aot_eager", fullgraph=True)
        for _ in range(20):
            run(torch.ones(2, 3)).sum().backward()
            if order is not None and layers is not None:
                order.arrange(tuple(range(len(layers))))
                order.end_step()
        return {kind: dict(counts) for kind, counts in counters.items() if counts}

    plain, watched = train(watched=False), train(watched=True)

    assert plain["stats"]["unique_graphs"] == 1
    assert watched == plain
