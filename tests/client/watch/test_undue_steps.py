"""`attach(every=10)`: the steps between are not measured, and cost nothing on the device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradwatch._layers.tracker import LayerTracker
from gradwatch_wire import Gains
from gradwatch_wire.columns import UNKNOWN
from tests.support.recording import Sink

pytestmark = pytest.mark.slow

EVERY = 4


class Operations(TorchDispatchMode):
    """Lists the operations of torch that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Views enqueue nothing: autograd makes some for hooks, and a loss is looked at through one.
        # What a loss on the CPU is goes into the history of the steps.
        if not {"detach", "view", "_local_scalar_dense"} & set(str(func).split(".")):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Chain(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, batch: Tensor) -> Tensor:
        for block in self.blocks:
            batch = block(batch)
        return batch


def step(model: nn.Module, optimizer: torch.optim.Optimizer, watch: Any = None) -> list[str]:
    """Train a step, and return its operations."""
    with Operations() as operations:
        for _ in range(2):  # accumulated
            loss = model(torch.ones(1, 4)).sum()
            loss.backward()
        if watch is not None:
            watch.collect(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    names: list[str] = operations.names
    return names


@pytest.mark.parametrize("local", [True, False])
def test_between_two_collected_steps_no_operation_is_added(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    # Other tests may have compiled something: then what compiled code writes to is cleared.
    monkeypatch.setattr("gradwatch._hooks.activations.has_compiled", lambda: False)
    plain, model = Chain(), Chain()
    plain_optimizer, optimizer = (
        torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model)
    )
    expected = step(plain, plain_optimizer)
    watch = aggregator.attach(
        *(model, optimizer), every=EVERY, local=local, blocks=model.blocks, activations=True
    )
    refreshed: list[LayerTracker] = []
    refresh = LayerTracker.refresh

    def counted(tracker: LayerTracker) -> Any:
        refreshed.append(tracker)
        return refresh(tracker)

    monkeypatch.setattr(LayerTracker, "refresh", counted)
    for number in range(2 * EVERY + 1):
        del refreshed[:]
        names = step(model, optimizer, watch)
        if number % EVERY:
            assert names == expected
            assert not refreshed
        else:
            assert len(names) > len(expected)
    watch.close()

    assert [stats.step for stats in aggregator.stats(3)] == [0, EVERY, 2 * EVERY]
    assert [gains.step for gains in aggregator.of(Gains)] == [0, EVERY, 2 * EVERY]


def frames_of(call: Callable[[], object]) -> int:
    """Return the functions of the client, and of what keeps Dynamo from it, that a call runs."""
    found = 0

    def look(frame: Any, event: str, _: object) -> None:
        nonlocal found
        name = frame.f_globals.get("__name__") or ""
        found += event == "call" and name.startswith(("gradwatch", "torch._dynamo"))

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("settings", [{}, {"local": True}], ids=str)
@pytest.mark.parametrize("world", ["1", "2"])
def test_a_step_between_runs_as_few_functions_however_many_layers_there_are(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], world: str
) -> None:
    """A hook on each parameter stays where it is, and is none of Python then."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", world)

    def count(num_layers: int) -> list[int]:
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(num_layers)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        watch = aggregator.attach(model, optimizer, every=EVERY, run=f"of-{num_layers}", **settings)
        found = [frames_of(lambda: trained(model, optimizer)) for _ in range(3 * EVERY)]
        assert watch.stats()["faults"] == 0
        return found[EVERY:]

    few, many = count(8), count(40)
    for number, (one, other) in enumerate(zip(few, many, strict=True)):
        if number % EVERY in range(1, EVERY - 1):  # at the end of the last hooks are put back
            assert other < one + 10 < 250, number  # of 64 parameters more
        elif settings:
            assert one + 64 < other, number


@pytest.mark.usefixtures("rank_0_of_2")
def test_local_norms_are_there_in_each_step_that_is_due(aggregator: Sink) -> None:
    model = Chain()
    watch, optimizer = aggregator.attach_sgd(model, lr=0.0, every=EVERY, local=True)
    for number in range(2 * EVERY + 1):
        blocks = model.blocks[1:] if number == EVERY else model.blocks
        batch = torch.ones(1, 4)
        for block in blocks:
            batch = block(batch)
        for parameter in model.parameters():  # what other ranks have left, with accumulation
            parameter.grad = torch.ones_like(parameter)
        batch.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    sent = aggregator.stats(3)
    norms = [aggregator.layers(stats, "local_l2") for stats in sent]

    assert [stats.step for stats in sent] == [0, EVERY, 2 * EVERY]
    assert norms[0] == norms[2]
    assert min(norms[0].values()) > 0.0
    assert norms[1]["blocks.0.weight"] == norms[1]["blocks.0.bias"] == 0.0
    assert norms[1]["blocks.1.weight"] > 0.0


@pytest.mark.usefixtures("rank_0_of_2")
def test_what_is_made_due_after_its_pass_is_unknown(aggregator: Sink) -> None:
    """Hooks that did not look do not say that a layer got nothing."""
    model = Chain()
    watch, optimizer = aggregator.attach_sgd(model, lr=0.0, every=EVERY, local=True)
    for number in range(3):
        model(torch.ones(1, 4)).sum().backward()
        if number == 1:
            watch.annotate(step=EVERY)
            model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    sent = aggregator.stats(2)

    assert [stats.step for stats in sent] == [0, EVERY]
    assert set(aggregator.layers(sent[1], "local_l2").values()) == {UNKNOWN}


def test_gains_are_those_of_the_collected_step(aggregator: Sink) -> None:
    """Gains of a step that `collect` renumbers belong to another step, and are forgotten."""
    model = Chain()
    watch, optimizer = aggregator.attach_sgd(model, lr=0.0, every=EVERY, blocks=model.blocks)
    for number in range(2 * EVERY):
        factor = 1.0 if number in (0, EVERY) else 1000.0
        (model(torch.ones(1, 4)).sum() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    aggregator.stats(2)
    first, second = aggregator.of(Gains)

    assert first.norms.unpack() == pytest.approx(second.norms.unpack())
