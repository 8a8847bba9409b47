"""`attach(every=10)`: the steps between are not measured, and cost nothing on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradwatch._layers.tracker import LayerTracker
from gradwatch_wire import Gains

EVERY = 4


class Operations(TorchDispatchMode):
    """Lists the operations of torch that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Views enqueue nothing: autograd makes some for hooks, and a loss is looked at through one.
        if not {"detach", "view"} & set(str(func).split(".")):
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
    aggregator: Any, attach: Any, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """No statistic, no copy to the host, no look at the model, whatever is observed."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    # Other tests may have compiled something: then what compiled code writes to is cleared.
    monkeypatch.setattr("gradwatch._hooks.activations.has_compiled", lambda: False)
    plain, model = Chain(), Chain()
    plain_optimizer, optimizer = (
        torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model)
    )
    expected = step(plain, plain_optimizer)
    watch = attach(
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


def test_gains_are_those_of_the_collected_step(aggregator: Any, attach: Any) -> None:
    """What `collect` renumbers was recorded for another step, and is forgotten."""
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = attach(model, optimizer, every=EVERY, blocks=model.blocks)
    for number in range(2 * EVERY):
        factor = 1.0 if number in (0, EVERY) else 1000.0
        (model(torch.ones(1, 4)).sum() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    aggregator.stats(2)
    first, second = aggregator.of(Gains)

    assert first.norms.unpack() == pytest.approx(second.norms.unpack())
