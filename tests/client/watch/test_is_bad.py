"""`watch.is_bad()`: what is known of the gradients of the step under way, before it is taken."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from tests.support.recording import Sink


def backward(model: nn.Module, value: float = 1.0) -> None:
    model.zero_grad()
    model(torch.full((4, 3), value)).sum().backward()


@pytest.mark.parametrize(
    ("value", "expected"), [(1.0, False), (math.nan, True), (math.inf, True), (3e38, True)]
)
def test_a_measured_step_is_known(aggregator: Sink, value: float, expected: bool) -> None:
    model = nn.Linear(3, 2)
    watch, optimizer = aggregator.attach_sgd(model, every=1)
    found = []
    for each in (1.0, value, 1.0):
        backward(model, each)
        found.append(watch.is_bad())
        optimizer.zero_grad()
        optimizer.step()

    assert found == [False, expected, False]


def test_the_newest_bad_step_is_known_without_a_wait(aggregator: Sink) -> None:
    model = nn.Linear(3, 2)
    watch, optimizer = aggregator.attach_sgd(model, every=1)
    assert watch.stats()["bad_step"] == -1
    for value in (1.0, math.nan, math.inf, 1.0):
        backward(model, value)
        optimizer.zero_grad()
        optimizer.step()
    aggregator.stats(4)

    assert watch.stats()["bad_step"] == 2


def test_finite_norms_whose_sum_overflows_are_not_bad(aggregator: Sink) -> None:
    model = nn.Linear(1, 1, dtype=torch.float64)
    watch, optimizer = aggregator.attach_sgd(model, every=1, lr=0.0)
    (1.7e308 * (model.weight + model.bias)).sum().backward()
    optimizer.step()
    aggregator.stats(1)

    assert watch.stats()["bad_step"] == -1


def test_one_bad_layer_of_many_is_enough(aggregator: Sink) -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(20)))
    watch, _ = aggregator.attach_sgd(model, every=1)
    backward(model)
    assert watch.is_bad() is False
    next(model[7].parameters()).register_hook(lambda gradient: gradient * math.nan)
    backward(model)

    assert watch.is_bad() is True


def test_between_steps_nothing_is_known(aggregator: Sink) -> None:
    model = nn.Linear(3, 2)
    watch, optimizer = aggregator.attach_sgd(model, every=1)
    assert watch.is_bad() is None
    backward(model)
    optimizer.step()
    assert watch.is_bad() is None
    backward(model)
    watch.close()
    assert watch.is_bad() is None


def test_a_step_that_was_left_out_is_not_known(aggregator: Sink) -> None:
    model = nn.Linear(3, 2)
    watch, optimizer = aggregator.attach_sgd(model, every=3)
    found = []
    for _ in range(7):
        backward(model, math.nan)
        found.append(watch.is_bad())
        optimizer.step()

    assert found == [True, None, None, True, None, None, True]


def test_of_two_optimizers_both_have_to_be_known(aggregator: Sink) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    watch = aggregator.attach(model, optimizers, every=1)
    backward(model)
    assert watch.is_bad() is False
    backward(model, math.nan)
    assert watch.is_bad() is True


def test_a_dropped_step_was_not_taken(aggregator: Sink) -> None:
    model = nn.Linear(3, 2)
    watch, optimizer = aggregator.attach_sgd(model, every=1, updates_every=1)
    for step in range(4):
        backward(model, math.nan if step == 2 else 1.0)
        if watch.is_bad():
            optimizer.zero_grad()
            watch.drop_step()
        optimizer.step()
    found: list[Any] = aggregator.stats(4)

    assert [stats.step for stats in found] == [0, 1, 2, 3]
    assert [stats.labels["taken"] for stats in found] == [True, True, False, True]
    assert ["update_rms" in stats.columns for stats in found] == [True, True, False, True]
    assert all(each.isfinite().all() for each in model.parameters())


def test_a_watch_that_is_switched_off_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWATCH_DISABLED", "1")
    model = nn.Linear(3, 2)
    watch = gradwatch.attach(model)
    backward(model, math.nan)
    watch.drop_step()

    assert watch.is_bad(wait=True) is None
