"""What a user must know is told once, in one line, with what to do."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.support.recording import Sink

pytestmark = pytest.mark.slow


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines of warnings so far, without what each begins with."""

    def lines() -> list[str]:
        records = [r for r in caplog.records if r.levelno >= logging.WARNING]
        return [record.getMessage().removeprefix("gradwatch: ") for record in records]

    return lines


def model_and_optimizer() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def test_a_plain_loop_is_told_nothing(aggregator: Sink, told: Any) -> None:
    model, optimizer = model_and_optimizer()
    watch = aggregator.attach(model, optimizer)
    for step in range(4):
        for _ in range(2):
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
        watch.collect(loss=loss)
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    watch.close()

    assert told() == []


def test_collect_after_clipping_says_that_norms_may_be_after_it(
    aggregator: Sink, told: Any
) -> None:
    model, optimizer = model_and_optimizer()
    watch = aggregator.attach(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        (100 * model(torch.ones(1, 2))).sum().backward()
        clip_grad_norm_(model.parameters(), 0.1)
        watch.collect()
        optimizer.step()

    (line,) = told()
    assert line.startswith("gradients were changed between the end of the backward pass and coll")
    assert "these norms may be after clipping; call collect() before it, or not at all" in line


def test_a_step_without_a_pass_says_that_norms_may_be_after_clipping(
    aggregator: Sink, told: Any
) -> None:
    model, optimizer = model_and_optimizer()
    aggregator.attach(model, optimizer)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    (line,) = told()
    assert line.startswith("no backward pass was seen before an optimizer's step, whose gradients")
    assert "may be after clipping; call collect() before it" in line


def test_a_scaler_that_was_not_given_is_told(aggregator: Sink, told: Any) -> None:
    model, optimizer = model_and_optimizer()
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**120) for _ in range(2)]
    aggregator.attach(model, optimizer)
    for size in (1e30, 1.0, 1.0):  # the first step is skipped, so nobody sees the scaler in it
        optimizer.zero_grad()
        scalers[1].scale(model(torch.full((1, 2), size)).sum()).backward()
        scalers[1].step(optimizer)
        scalers[1].update()

    (line,) = told()
    assert line.startswith("loss scale: whether the gradients of step 0 carry a loss scale is not")
    assert "pass attach(scaler=...)" in line


def test_parameters_in_no_optimizer_are_told_at_attach(aggregator: Sink, told: Any) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    model[3].requires_grad_(requires_grad=False)  # frozen on purpose
    aggregator.attach(model, torch.optim.SGD(model[0].parameters(), lr=0.1))

    (line,) = told()
    assert line == (
        "optimizer: 4 parameters (1.weight, 1.bias, 2.weight, ...) require a gradient and are in "
        "no optimizer that was given, so they are not watched; pass all optimizers, or name them "
        "in exclude= (told once)"
    )


def test_without_an_optimizer_all_are_watched(aggregator: Sink, told: Any) -> None:
    """By `collect`."""
    aggregator.attach(nn.Linear(2, 2))

    assert told() == []


def test_another_optimizer_of_the_model_is_told_when_it_steps(aggregator: Sink, told: Any) -> None:
    model, optimizer = model_and_optimizer()
    body = torch.optim.Adam(model[0].parameters())
    stranger = nn.Linear(2, 2)
    other = torch.optim.Adam(stranger.parameters())
    head = torch.optim.SGD(model[1].parameters(), lr=0.1)
    aggregator.attach(model, head, exclude="0.weight")
    del optimizer
    for _ in range(2):
        (model(torch.ones(1, 2)).sum() + stranger(torch.ones(1, 2)).sum()).backward()
        for each in (body, other, head):
            each.step()

    untrained, another = told()
    assert untrained.startswith("optimizer: 1 parameters (0.bias) require a gradient and are in no")
    assert another == (
        "optimizer: one that attach was not given, Adam, steps 1 of the model's parameters, and "
        "its steps are not seen; pass it too (told once)"
    )
