"""Accelerate: `attach` takes what `prepare` returns."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")


def train(attach: Any, *, accumulate: int, before: bool) -> tuple[list[float], Any]:
    """Train 8 batches with clipping; return the norms that `clip_grad_norm_` returned."""
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=accumulate, cpu=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches: Any = torch.randn(16, 4)
    loader: Any = torch.utils.data.DataLoader(batches, batch_size=2)
    if before:
        watch = attach(model, optimizer)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if not before:
        watch = attach(model, optimizer)
    norms = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.01)))
            optimizer.step()
            optimizer.zero_grad()
    return norms, watch


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_prepared_objects(aggregator: Any, attach: Any, accumulate: int, before: bool) -> None:
    """The norm is what `clip_grad_norm_` returns; a step is a step of the inner optimizer."""
    norms, watch = train(attach, accumulate=accumulate, before=before)
    sent = aggregator.stats(8 // accumulate)

    assert [stats.step for stats in sent] == list(range(len(norms)))
    totals = [math.hypot(*aggregator.layers(stats).values()) for stats in sent]
    assert totals == pytest.approx(norms, rel=1e-5)
    assert watch.stats()["faults"] == 0


def test_the_scaler_of_a_prepared_optimizer_is_found(aggregator: Any, attach: Any) -> None:
    """Beside the optimizer in its wrapper, even where several scalers are alive."""
    wrapped = pytest.importorskip("accelerate.optimizer").AcceleratedOptimizer
    accelerate.Accelerator(cpu=True)
    model = nn.Linear(4, 1)
    others = [torch.amp.GradScaler("cpu") for _ in range(2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = wrapped(torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
    attach(model, optimizer)
    loss = model(torch.ones(2, 4)).sum()
    scaler.scale(loss * math.inf).backward()
    optimizer.step()
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    true = float(model.weight.grad.norm()) / scaler.get_scale()  # type: ignore[union-attr]
    optimizer.step()
    skipped, taken = aggregator.stats(2)

    assert len(others) == 2
    assert [stats.labels["taken"] for stats in (skipped, taken)] == [False, True]
    assert [stats.labels["scaled"] for stats in (skipped, taken)] == [False, False]
    assert aggregator.layers(taken)["weight"] == pytest.approx(true, rel=1e-5)


def test_an_attach_that_fails_leaves_nothing_on_prepared_objects(attach: Any) -> None:
    """One clear error, and no hook on any parameter."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    with pytest.raises(ValueError, match="none of the 2 parameters"):
        gradwatch.attach(model, optimizer, run="test")
    gc.collect()

    assert not any(p._post_accumulate_grad_hooks or p._backward_hooks for p in model.parameters())
