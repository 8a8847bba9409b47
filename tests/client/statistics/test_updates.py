"""Sizes of updates: exact where all of a layer is read, close where a sample is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch._statistics.updates import (
    MAX_SAMPLED,
    MIN_SIZE,
    SAMPLE_SIZE,
    size_of_update,
    take_sample,
)
from gradwatch_wire.columns import UNCHANGED, UPDATE_RMS, WEIGHT_RMS

CPU = torch.device("cpu")


def updated(weights: Sequence[Tensor], moves: Sequence[Tensor | None]) -> dict[str, list[float]]:
    """Move each weight, and return the columns."""
    before = take_sample(weights, CPU)
    with torch.no_grad():
        for weight, move in zip(weights, moves, strict=True):
            if move is not None:
                weight.add_(move)
    return {name: column.tolist() for name, column in size_of_update(before).items()}


def weight_of(numbers: Tensor, gradient: Tensor | None = None) -> nn.Parameter:
    weight = nn.Parameter(numbers)
    weight.grad = torch.ones_like(numbers) if gradient is None else gradient
    return weight


def rms(numbers: Tensor) -> float:
    return numbers.double().square().mean().sqrt().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (7,), (64, 64), (3, 5, 2)])
def test_a_small_layer_is_read_as_a_whole(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    weight = weight_of(torch.randn(shape).to(dtype))
    old, move = weight.detach().clone(), (torch.randn(shape) / 8).to(dtype)
    move[(0,) * len(shape)] = 0.0
    found = updated([weight, weight_of(torch.zeros(2))], [move, torch.ones(2)])

    new = weight.detach()
    moved = rms(new.double() - old.double())
    assert found[UPDATE_RMS] == pytest.approx([moved, 1.0], rel=1e-5)
    assert found[WEIGHT_RMS] == pytest.approx([rms(new), 1.0], rel=1e-5)
    assert found[UNCHANGED] == [pytest.approx((new == old).double().mean().item()), 0.0]


@pytest.mark.parametrize("shape", [(300, 400), (256, 1024), (64, 64, 3, 3), (90_001,)])
def test_the_sample_of_a_large_layer_is_like_the_whole(shape: tuple[int, ...]) -> None:
    """Also where each column has a size of its own: no stride stays in some of them."""
    weight = weight_of(torch.randn(shape))
    columns = torch.linspace(0.1, 4.0, shape[-1])
    move = torch.randn(shape) * columns
    move[torch.rand(shape) < 0.3] = 0.0
    found = updated([weight], [move])

    assert found[UPDATE_RMS] == [pytest.approx(rms(move), rel=0.08)]
    assert found[WEIGHT_RMS] == [pytest.approx(rms(weight.detach()), rel=0.08)]
    assert found[UNCHANGED] == [pytest.approx(0.3, abs=0.04)]


def test_updates_of_trainings_are_within_1_percent_in_the_median() -> None:
    errors = []
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
        for seed in range(6):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 256))
            optimizer = kind(model.parameters(), lr=1e-3)
            weights = [each for each in model.parameters() if each.dim() > 1]
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.randn(64, 300)).square().mean().backward()
                old = [each.detach().clone() for each in weights]
                before = take_sample(weights, CPU)
                optimizer.step()
            found = size_of_update(before)[UPDATE_RMS].tolist()
            moved = [rms(new.detach() - own) for new, own in zip(weights, old, strict=True)]
            errors += [abs(own / true - 1.0) for own, true in zip(found, moved, strict=True)]

    assert statistics.median(errors) <= 0.01


@pytest.mark.parametrize("count", [1, 256, 300, 5_000])
def test_of_many_layers_less_is_read(count: int) -> None:
    weights = [nn.Parameter(torch.ones(1).expand(200, 200)) for _ in range(count)]
    packed = [nn.Parameter(torch.ones(200, 200))] * count
    sample = take_sample(packed, CPU)

    assert set(sample.sizes) <= set(range(MIN_SIZE // 2, SAMPLE_SIZE + 1))
    assert len(sample.numbers) <= MAX_SAMPLED
    assert take_sample(weights, CPU).sizes == (0,) * count  # that store less than they have


def test_the_layout_in_memory_does_not_matter() -> None:
    numbers = torch.randn(90, 110)
    weights = [weight_of(each) for each in (numbers.T.clone().T, numbers[:, ::2], numbers[:3, :5])]
    found = updated(weights, [torch.full_like(each, 0.5) for each in weights])

    assert found[UPDATE_RMS][0] == pytest.approx(0.5)
    assert list(map(math.isnan, found[UPDATE_RMS])) == [False, True, True]
    assert list(map(math.isnan, found[UNCHANGED])) == [False, True, True]


def test_what_is_not_finite_is_neither_hidden_nor_spread() -> None:
    weights = [weight_of(torch.ones(5)) for _ in range(3)]
    moves = [torch.ones(5) for _ in range(3)]
    moves[1][2] = math.nan
    moves[2][2] = math.inf
    found = updated(weights, moves)

    assert found[UPDATE_RMS] == [1.0, pytest.approx(math.nan, nan_ok=True), math.inf]
    assert found[UNCHANGED] == [0.0] * 3


@pytest.mark.parametrize(("size", "step"), [(10, 1), (50_000, 1), (50_000, 7)])
def test_a_layer_that_stays_is_unchanged_if_it_has_a_gradient(size: int, step: int) -> None:
    gradients: list[Any] = [torch.ones(size), torch.zeros(size), torch.zeros(size)]
    gradients[2][::step] = math.nan
    weights = [weight_of(torch.ones(size), gradient) for gradient in gradients]
    weights.append(nn.Parameter(torch.ones(size)))  # without any
    found = updated(weights, [None] * 4)

    assert found[UPDATE_RMS] == [0.0] * 4
    assert found[UNCHANGED][0] == found[UNCHANGED][2] == 1.0
    assert math.isnan(found[UNCHANGED][1])
    assert math.isnan(found[UNCHANGED][3])


def test_updates_below_the_precision_are_lost() -> None:
    weight = weight_of(torch.ones(1000, dtype=torch.bfloat16))
    assert updated([weight], [torch.full((1000,), 1e-3).bfloat16()])[UNCHANGED] == [1.0]


def test_a_single_weight_is_not_written_to() -> None:
    weight = weight_of(torch.ones(10))
    size_of_update(take_sample([weight], CPU))

    assert weight.tolist() == [1.0] * 10


def test_tiny_updates_are_no_zeros() -> None:
    """Their squares are below the range of float32."""
    found = updated([weight_of(torch.zeros(100))], [torch.full((100,), 1e-30)])
    assert found[UPDATE_RMS] == [pytest.approx(1e-30, rel=1e-4)]
    assert found[UNCHANGED] == [0.0]


def test_weights_of_other_sizes_after_the_step_say_nothing() -> None:
    weight = weight_of(torch.ones(10))
    before = take_sample([weight], CPU)
    weight.data = torch.ones(11)

    assert size_of_update(before) == {}
    assert size_of_update(take_sample([nn.Parameter(torch.ones(2, dtype=torch.cfloat))], CPU)) == {}
