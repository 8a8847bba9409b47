"""`annotate`: what is known of the step under way, without measuring anything."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import LBFGS

from tests.support.recording import Sink

pytestmark = pytest.mark.slow


def backward(model: nn.Module, factor: float = 1.0) -> Tensor:
    loss: Tensor = factor * model(torch.ones(2, 3)).square().mean()
    loss.backward()
    return loss.detach()


def test_the_loss_is_in_the_record_of_the_pass_before_it(aggregator: Sink) -> None:
    """The point stays the end of the backward pass, also where gradients were changed since."""
    model = nn.Linear(3, 1)
    watch, optimizer = aggregator.attach_sgd(model)
    losses, norms = [], []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(float(backward(model)))
        assert model.weight.grad is not None
        norms.append(float(model.weight.grad.norm()))
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        watch.annotate(loss=losses[-1])
        optimizer.step()
    sent = aggregator.stats(3)

    assert [stats.scalars["loss"] for stats in sent] == losses
    assert [aggregator.layers(stats)["weight"] for stats in sent] == pytest.approx(norms)
    assert {stats.labels["point"] for stats in sent} == {"backward"}
    assert watch.stats()["faults"] == 0


def test_several_losses_of_a_step_are_averaged(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    watch, optimizer = aggregator.attach_sgd(model)
    losses = []
    for factor in (1.0, 2.0, 6.0):
        losses.append(backward(model, factor))
        watch.annotate(loss=losses[-1])
    optimizer.step()
    (stats,) = aggregator.stats(1)

    assert stats.scalars["loss"] == pytest.approx(float(sum(losses)) / 3)
    assert watch.stats()["faults"] == 0


def test_losses_stay_when_a_later_pass_of_the_step_reaches_more_layers(aggregator: Sink) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    watch, optimizer = aggregator.attach_sgd(model)
    for _ in range(2):
        for depth, loss in ((1, 1.0), (2, 2.0), (2, 6.0)):
            backward(model[:depth])
            watch.annotate(loss=loss)
        optimizer.step()
        optimizer.zero_grad()

    assert [stats.scalars["loss"] for stats in aggregator.stats(2)] == [3.0, 3.0]


def test_the_step_gets_the_number_and_counting_goes_on_from_it(aggregator: Sink) -> None:
    """As with `collect(step=...)`."""
    model = nn.Linear(3, 1)
    watch, optimizer = aggregator.attach_sgd(model)
    for step in (None, 70, None):
        backward(model)
        watch.annotate(step=step)
        optimizer.step()

    assert [stats.step for stats in aggregator.stats(3)] == [0, 70, 71]


def test_of_a_line_search_the_first_loss_counts(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=4)
    watch = aggregator.attach(model, optimizer)
    losses: list[list[float]] = []

    def closure() -> float:
        optimizer.zero_grad()
        loss = backward(model)
        watch.annotate(loss=loss)
        losses[-1].append(float(loss))
        return losses[-1][-1]

    for _ in range(2):
        losses.append([])
        optimizer.step(closure)
    sent = aggregator.stats(2)

    assert min(map(len, losses)) > 1
    assert [stats.scalars["loss"] for stats in sent] == [step[0] for step in losses]


def test_without_a_pass_there_is_no_step_to_annotate(
    aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(3, 1)
    watch, optimizer = aggregator.attach_sgd(model)
    with caplog.at_level(logging.WARNING, "gradwatch"):
        for _ in range(2):
            watch.annotate(loss=5.0, step=9)
            backward(model)
            optimizer.step()
    sent = aggregator.stats(2)

    assert [stats.step for stats in sent] == [0, 1]
    assert not any("loss" in stats.scalars for stats in sent)
    assert ["call it between backward() and step()" in line for line in caplog.messages] == [True]


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("collects", [False, True])
@pytest.mark.parametrize("reduce_dtype", [None, torch.bfloat16])
def test_losses_of_passes_that_leave_no_gradient_count(
    aggregator: Sink, reduce_dtype: torch.dtype | None, collects: bool
) -> None:
    """FSDP2 gives the shards their gradient in the last pass of a step; the mean is over all."""
    model: Any = fully_shard(
        nn.Linear(3, 1),
        mesh=init_device_mesh("cpu", (1,)),
        mp_policy=MixedPrecisionPolicy(reduce_dtype=reduce_dtype),
    )
    watch, optimizer = aggregator.attach_sgd(model)
    means = []
    for step in range(3):
        losses = []
        for factor in (1.0, 2.0, 6.0):
            model.set_requires_gradient_sync(factor == 6.0)
            losses.append(backward(model, factor + step))
            if collects:
                watch.collect(loss=losses[-1], micro_batch=factor != 6.0)
            else:
                watch.annotate(loss=losses[-1])
        means.append(float(sum(losses)) / 3)
        optimizer.step()
        optimizer.zero_grad()
    sent = aggregator.stats(3)

    assert [stats.scalars["loss"] for stats in sent] == pytest.approx(means)
    assert watch.stats()["faults"] == 0


def test_a_wrong_argument_is_logged_and_left_out(
    aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the call counts."""
    model = nn.Linear(3, 1)
    watch, optimizer = aggregator.attach_sgd(model)
    backward(model)
    with caplog.at_level(logging.WARNING, "gradwatch"):
        watch.annotate(loss=torch.ones(2), step=4)
    optimizer.step()
    (stats,) = aggregator.stats(1)

    assert stats.step == 4
    assert "loss" not in stats.scalars
    assert any("one-element tensor" in line for line in caplog.messages)


def train_with(aggregator: Sink, *batches: Any, **settings: Any) -> list[str]:
    """Return the batches of the records, each given before its backward pass."""
    model = nn.Linear(3, 1)
    watch, optimizer = aggregator.attach_sgd(model, **settings)
    for batch in batches:
        watch.annotate(batch=batch)
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    return [stats.batch for stats in aggregator.stats(len(batches))]


def test_the_batch_of_a_step_is_in_its_record_alone(
    aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    given = [7, "shard-3/0012", [4, 9, 1], None, range(3), ()]

    with caplog.at_level(logging.WARNING, "gradwatch"):
        found = train_with(aggregator, *given)
    assert found == ["7", "shard-3/0012", "4,9,1", "", "0,1,2", ""]
    assert caplog.messages == []


def test_several_batches_of_a_step_follow_each_other(aggregator: Sink) -> None:
    """Those of micro-batches; it may be said before a pass, and after it."""
    model = nn.Linear(3, 1)
    watch, optimizer = aggregator.attach_sgd(model)
    for step in range(2):
        for micro in range(2):
            watch.annotate(batch=10 * step + micro)
            watch.annotate(loss=backward(model), batch=None)
        optimizer.step()

    assert [stats.batch for stats in aggregator.stats(2)] == ["0; 1", "10; 11"]


@pytest.mark.parametrize("long", ["x" * 300, "ä" * 200, list(range(200))])
def test_a_long_identity_loses_its_end(aggregator: Sink, long: Any) -> None:
    (batch,) = train_with(aggregator, long)

    assert batch.endswith("…")
    assert 254 <= len(batch.encode()) <= 256


def test_of_many_batches_in_a_step_the_first_ones_are_kept(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    watch, optimizer = aggregator.attach_sgd(model)
    for micro in range(100):
        watch.annotate(batch=1000 + micro)
        backward(model)
    optimizer.step()

    (stats,) = aggregator.stats(1)
    assert stats.batch == "; ".join(str(1000 + micro) for micro in range(43))


@pytest.mark.parametrize("wrong", [1.5, torch.tensor([1, 2]), [1, None], object()])
def test_what_is_no_identity_costs_itself_alone(
    aggregator: Sink, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    with caplog.at_level(logging.WARNING, "gradwatch"):
        assert train_with(aggregator, wrong, 1) == ["", "1"]
    assert "batch: an integer, a string or a list of these, got " in caplog.text


def test_a_record_of_several_steps_is_of_no_batch(aggregator: Sink) -> None:
    model = nn.Linear(3, 1)
    watch, optimizer = aggregator.attach_sgd(model, report_every=2)
    for step in range(4):
        watch.annotate(batch=step)
        optimizer.zero_grad()
        backward(model)
        optimizer.step()

    assert [stats.batch for stats in aggregator.stats(2)] == ["", ""]
