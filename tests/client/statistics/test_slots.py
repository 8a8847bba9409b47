"""What hooks measure: into memory that is kept, and one tensor at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch._statistics.single import write_norm
from gradwatch._statistics.slots import Slots
from tests.support.recording import Sink

CPU = torch.device("cpu")


def write(slots: Slots, index: int, number: float, add: Any = None) -> None:
    slot = slots.spare(index, CPU)
    slot[1].fill_(number)
    slots.keep(index, slot, add)


def test_another_pass_is_measured_beside_what_is_kept() -> None:
    """What is written and never kept, as by `autograd.grad`, changes nothing."""
    slots = Slots([CPU] * 2)
    for number in (3.0, 1.0, 2.0):
        write(slots, 0, number, torch.maximum)
        slots.spare(0, CPU)[1].fill_(math.nan)
    write(slots, 1, 5.0)
    write(slots, 1, 4.0)

    assert {i: float(number) for i, number in slots.take((0, 1)).items()} == {0: 3.0, 1: 4.0}
    assert len(slots) == 0


def test_what_is_not_taken_waits() -> None:
    slots = Slots([CPU] * 3)
    for index in range(3):
        write(slots, index, float(index))
    taken = slots.take([2, 0])
    write(slots, 1, 10.0, torch.add)

    assert {index: float(number) for index, number in taken.items()} == {2: 2.0, 0: 0.0}
    assert [float(number) for number in slots.take([1]).values()] == [11.0]


def test_a_layer_that_is_new_has_a_place_and_the_others_keep_theirs() -> None:
    slots = Slots([CPU])
    write(slots, 0, 1.0)
    write(slots, 7, 7.0)
    write(slots, 0, 2.0, torch.add)

    assert {i: float(number) for i, number in slots.take(range(8)).items()} == {0: 3.0, 7: 7.0}


@pytest.mark.slow
def test_hooks_write_to_the_same_memory_in_each_step(aggregator: Sink) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch: Any = aggregator.attach(model, optimizer, local=True, blocks=model)
    observers: Any = watch._recorder.observed._observers
    local, blocks = observers
    places = []
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        slots = (local._norms, blocks._monitor._norms)
        places.append([each._buffers[CPU].data_ptr() for each in slots])
        optimizer.step()
        optimizer.zero_grad()

    assert places[0] == places[1] == places[2]


@pytest.mark.slow
@pytest.mark.sampled(40)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
@pytest.mark.parametrize("numel", [0, 1, 1000, 200_000])
@pytest.mark.parametrize("scale", [1.0, 0.0, math.inf, math.nan, "largest", "smallest"])
@pytest.mark.parametrize("forced", [False, True])
def test_a_single_norm_is_exact(
    dtype: torch.dtype, numel: int, scale: Any, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forced:
        monkeypatch.setenv("GRADWATCH_FOREACH", "0")
    limits = torch.finfo(dtype)
    factor = {"largest": limits.max / 1024, "smallest": limits.tiny}.get(scale, scale)
    torch.manual_seed(0)
    gradient = (torch.rand(numel, dtype=torch.float64) * factor).to(dtype)
    slot = torch.empty(1, dtype=torch.float64)
    write_norm(gradient, slot)
    peak = float(gradient.abs().max()) if numel else 0.0
    is_finite = 0.0 < peak < math.inf
    expected = peak * float((gradient.double() / peak).norm()) if is_finite else peak

    assert float(slot) == pytest.approx(expected, rel=1e-5, nan_ok=True)
