"""Lightning: automatic optimization through closures, manual optimization through its wrapper."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradwatch

lightning = pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")


class Plain(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A small model that notes the truth: the norm where Lightning itself logs it."""

    def __init__(self, aggregator: Any, optimizer: Any = torch.optim.SGD) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.truth: list[float] = []
        self.at: list[int] = []
        self._optimizer = optimizer
        self._aggregator = aggregator
        self._watch: Any = None

    def configure_optimizers(self) -> Any:
        return self._optimizer(self.parameters(), lr=0.05)

    def on_train_start(self) -> None:
        self._watch = gradwatch.attach(
            self,
            self.optimizers(use_pl_optimizer=True),
            run="test",
            endpoint=self._aggregator.endpoint,
        )

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [p.grad.double().norm() for p in self.parameters() if p.grad is not None]
        self.truth.append(float(torch.stack(norms).norm()))
        self.at.append(self.trainer.global_step)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss: Tensor = self.layers(batch).square().mean()
        return loss

    def on_train_end(self) -> None:
        self._watch.close()


class Manual(Plain):
    """Steps by itself, every second batch."""

    def __init__(self, aggregator: Any) -> None:
        super().__init__(aggregator)
        self.automatic_optimization = False

    def training_step(self, batch: Tensor, index: int) -> None:  # type: ignore[override]
        self.manual_backward(self.layers(batch).square().mean())
        if index % 2:
            optimizer = self.optimizers()
            self.clip_gradients(optimizer, 0.01, "norm")
            optimizer.step()
            optimizer.zero_grad()


def fit(model: Any, **settings: Any) -> None:
    """Train 12 batches."""
    torch.manual_seed(1)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    batches: Any = torch.randn(24, 4)
    trainer.fit(model, torch.utils.data.DataLoader(batches, batch_size=2))


def totals(aggregator: Any, count: int) -> list[float]:
    """The total norm of each record."""
    return [math.hypot(*aggregator.layers(stats).values()) for stats in aggregator.stats(count)]


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_automatic_optimization(aggregator: Any, accumulate: int, clip: float | None) -> None:
    """Its `step(closure)` has the backward pass in it; the norm is that before clipping."""
    model = Plain(aggregator)
    fit(model, accumulate_grad_batches=accumulate, gradient_clip_val=clip)

    assert totals(aggregator, 12 // accumulate) == pytest.approx(model.truth, rel=1e-5)
    sent = aggregator.stats(12 // accumulate)
    assert [stats.step for stats in sent] == model.at
    assert {stats.labels["point"] for stats in sent} == {"backward"}
    passes = [stats.scalars.get("collections", 1.0) for stats in sent]
    assert passes == [float(accumulate)] * len(sent)
    assert model._watch.stats()["faults"] == 0


def test_manual_optimization(aggregator: Any) -> None:
    """The wrapper that `self.optimizers()` returns is unwrapped, and its steps are counted."""
    model = Manual(aggregator)
    fit(model)

    assert [stats.step for stats in aggregator.stats(6)] == list(range(6))
    assert all(total > 0.01 for total in totals(aggregator, 6))
    assert model._watch.stats()["faults"] == 0


def test_lbfgs_counts_steps(aggregator: Any) -> None:
    """Each step evaluates its closure many times; the first is at the step's own point."""
    model = Plain(aggregator, torch.optim.LBFGS)
    fit(model)
    first = [model.truth[model.at.index(step)] for step in range(12)]

    assert totals(aggregator, 12) == pytest.approx(first, rel=1e-5)
    assert [stats.step for stats in aggregator.stats(12)] == list(range(12))


def test_mixed_precision_with_a_scaler_that_was_not_given(aggregator: Any) -> None:
    """Skipped steps first, as the scale is too large; then the numbers are unscaled."""
    model = Plain(aggregator)
    plugin = lightning.plugins.MixedPrecision(
        "16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**20)
    )
    fit(model, plugins=[plugin])
    sent = aggregator.stats(12)
    taken = [stats for stats in sent if stats.labels["taken"]]
    truth = [norm for norm in model.truth if math.isfinite(norm)]

    assert [stats.step for stats in sent] == list(range(12))
    assert 0 < len(taken) < 12
    found = [math.hypot(*aggregator.layers(stats).values()) for stats in taken]
    assert found == pytest.approx(truth, rel=1e-3)
    assert {stats.labels["scaled"] for stats in taken} == {False}
