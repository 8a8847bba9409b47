"""Accelerate: `attach` takes what `prepare` returned; the numbers are those of its own calls."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.utils.data import DataLoader

import gradwatch
from gradwatch_wire import Event
from tests.client.integrations.batches import batches
from tests.support.recording import Sink, numbers_are_those_of_the_training

pytestmark = pytest.mark.filterwarnings("ignore")  # of accelerate, about tiny trainings


def regression() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


class Loop:
    """The loop of Accelerate's documentation.

    Attributes:
        said: What its own calls returned in each step.
    """

    def __init__(
        self,
        batches: list[tuple[Tensor, Tensor]],
        *,
        accumulate: int = 1,
        clip: float = 1e9,
        mixed_precision: str = "no",
    ) -> None:
        self.accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=mixed_precision
        )
        if mixed_precision == "fp16":
            # Accelerate makes a scaler on a GPU only; with one for the CPU it goes the same way.
            self.accelerator.scaler = GradScaler("cpu", init_scale=2.0**20, growth_interval=100)
            self.accelerator.native_amp = True
        model = regression()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        loader: DataLoader[Any] = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]  # a list will do
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, loader, scheduler
        )
        self.clip = clip
        self.said: list[dict[str, float]] = []

    def train(self, annotate: Callable[..., None], first_step: int = 0) -> None:
        losses: list[float] = []
        for inputs, targets in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = nn.functional.mse_loss(self.model(inputs), targets)
                self.accelerator.backward(loss)
                losses.append(loss.item())
                annotate(loss=loss)
                if self.accelerator.sync_gradients:
                    norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip)
                    assert norm is not None
                    self.said.append(
                        {
                            "step": first_step + len(self.said),
                            "norm": float(norm),
                            "loss": sum(losses) / len(losses),
                            "lr": self.optimizer.param_groups[0]["lr"],
                        }
                    )
                    losses.clear()
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()


def ignored(**numbers: object) -> None:
    """Do what an unwatched loop does with its loss."""


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("clip", [1e9, 0.1], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_each_record_is_what_accelerate_returns(
    aggregator: Sink, check: Any, accumulate: int, clip: float
) -> None:
    """Norm before clipping, loss, learning rate and step; the last window is a short one."""
    watched = Loop(batches(10), accumulate=accumulate, clip=clip)
    watched.train(aggregator.attach(watched.model, watched.optimizer).annotate)
    plain = Loop(batches(10), accumulate=accumulate, clip=clip)
    plain.train(ignored)

    check(watched.said)
    assert len(watched.said) == -(-10 // accumulate)
    assert_same_weights(watched.model, plain.model)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_attach_alone_is_enough_for_the_norms(aggregator: Sink, before: bool) -> None:
    """One line, without `annotate`, before or after `prepare`."""
    loop = Loop(batches(10), accumulate=4, clip=0.1)
    if before:
        watch = aggregator.attach(
            loop.accelerator.unwrap_model(loop.model), loop.optimizer.optimizer
        )
    else:
        watch = aggregator.attach(loop.model, loop.optimizer)
    loop.train(ignored)
    sent = aggregator.stats(3)
    norms = [math.hypot(*aggregator.layers(stats).values()) for stats in sent]

    assert norms == pytest.approx([said["norm"] for said in loop.said], rel=1e-4)
    assert [stats.step for stats in sent] == [0, 1, 2]
    assert {stats.labels["point"] for stats in sent} == {"backward"}
    assert watch.stats()["faults"] == 0


def test_a_resumed_run_goes_on_with_the_step_it_is_told(
    aggregator: Sink, check: Any, tmp_path: Path
) -> None:
    """Saved and loaded by Accelerate: the same weights as if it had not been interrupted."""
    whole = Loop(batches(8))
    whole.train(ignored)
    first = Loop(batches(4))
    first.train(ignored)
    first.accelerator.save_state(str(tmp_path))
    second = Loop(batches(8)[4:])
    second.accelerator.load_state(str(tmp_path))
    second.train(
        aggregator.attach(second.model, second.optimizer, first_step=4).annotate, first_step=4
    )

    assert [stats.step for stats in check(second.said)] == [4, 5, 6, 7]
    assert second.said == whole.said[4:]
    assert_same_weights(second.model, whole.model)


def test_a_nan_batch_is_seen_in_its_step(aggregator: Sink, check: Any) -> None:
    loop = Loop(batches(8, bad=3))
    loop.train(aggregator.attach(loop.model, loop.optimizer).annotate)
    sent = check(loop.said)

    bad = [stats.step for stats in sent if math.isnan(stats.scalars["loss"])]
    assert bad == [3, 4, 5, 6, 7]


def test_an_explosion_has_its_true_norm_under_clipping(check: Any, aggregator: Sink) -> None:
    """The learning rate is raised at step 4; the loop clips to 1."""
    loop = Loop(batches(8), clip=1.0)
    watch = aggregator.attach(loop.model, loop.optimizer)

    def annotate(**numbers: Any) -> None:
        if len(loop.said) >= 3:
            loop.scheduler.step = lambda: loop.optimizer.param_groups[0].update(lr=50.0)
        watch.annotate(**numbers)

    loop.train(annotate)
    check(loop.said)

    assert max(said["norm"] for said in loop.said[:5]) < 10
    assert loop.said[5]["norm"] > 100


def test_the_scaler_of_a_prepared_optimizer_is_found(aggregator: Sink) -> None:
    Accelerator(cpu=True)
    others = [GradScaler("cpu") for _ in range(2)]
    model, scaler = regression(), GradScaler("cpu", init_scale=1024.0)
    optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
    aggregator.attach(model, optimizer)
    norms = []
    for step, (inputs, targets) in enumerate(batches(4)):
        loss = nn.functional.mse_loss(model(inputs), targets) * (1.0 if step else math.inf)
        scaler.scale(loss).backward()
        grads = [parameter.grad for parameter in model.parameters()]
        assert all(grad is not None for grad in grads)
        total = nn.utils.get_total_norm([grad for grad in grads if grad is not None])
        norms.append(float(total) / scaler.get_scale())
        optimizer.step()
        optimizer.zero_grad()
    skipped, *taken = aggregator.stats(4)
    found = [math.hypot(*aggregator.layers(stats).values()) for stats in taken]

    assert len(others) == 2
    assert found == pytest.approx(norms[1:], rel=1e-4)
    assert [stats.labels["taken"] for stats in (skipped, *taken)] == [False, True, True, True]
    assert {stats.labels["scaled"] for stats in (skipped, *taken)} == {False}
    scales = [stats.scalars["loss_scale"] for stats in (skipped, *taken)]
    assert scales == [1024.0, 512.0, 512.0, 512.0]


def test_bf16_autocast(aggregator: Sink, check: Any) -> None:
    """As `clip_grad_norm_` returns it; there is no scaler."""
    loop = Loop(batches(6), mixed_precision="bf16", clip=0.1)
    loop.train(aggregator.attach(loop.model, loop.optimizer).annotate)
    sent = check(loop.said)

    assert {stats.labels["scaled"] for stats in sent} == {False}
    assert not any("loss_scale" in stats.scalars for stats in sent)


def test_fp16_with_a_scaler(check: Any, aggregator: Sink) -> None:
    loop = Loop(batches(8), mixed_precision="fp16", clip=0.1)
    loop.train(aggregator.attach(loop.model, loop.optimizer).annotate)
    sent = check(loop.said)

    skipped = [said["step"] for said in loop.said if not math.isfinite(said["norm"])]
    assert 0 < len(skipped) < 8
    assert [stats.step for stats in sent if not stats.labels["taken"]] == skipped
    events = [event.step for event in aggregator.of(Event) if event.name == "skipped_step"]
    assert events == skipped


def test_an_attach_that_fails_leaves_nothing_on_prepared_objects() -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    with pytest.raises(ValueError, match="none of the 2 parameters"):
        gradwatch.attach(model, optimizer, run="test")
    gc.collect()

    assert not any(p._post_accumulate_grad_hooks or p._backward_hooks for p in model.parameters())


TWO_RANKS = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
from torch.utils.data import DataLoader
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data))
if sys.argv[2] == "watched":
    import gradwatch
    watch = gradwatch.attach(model, optimizer, run="two")
norms, losses = [], []
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        losses.append(loss.item())
        if sys.argv[2] == "watched":
            watch.annotate(loss=loss)
        if accelerator.sync_gradients:
            norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.1)))
        optimizer.step()
        optimizer.zero_grad()
if sys.argv[2] == "watched":
    watch.close()
rank = accelerator.process_index
said = {"norms": norms, "losses": losses, "weights": [p.tolist() for p in model.parameters()]}
path = pathlib.Path(sys.argv[1], f"{sys.argv[2]}-{rank}.json")
path.write_text(json.dumps(said))
accelerator.end_training()
"""


@pytest.mark.exhaustive
def test_two_processes(aggregator: Sink, torchrun: Callable[..., None], tmp_path: Path) -> None:
    """DDP over gloo, two micro-batches a step, clipped."""
    for which in ("watched", "plain"):
        torchrun(2, TWO_RANKS, str(tmp_path), which)

    aggregator.stats(8)
    assert {hello.rank for hello in aggregator.hellos.values()} == {0, 1}
    numbers_are_those_of_the_training(aggregator, tmp_path)
