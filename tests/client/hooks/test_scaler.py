"""Under a GradScaler: unscaled numbers, and a record of each step that it skipped."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, Adam, Optimizer

from gradwatch_wire import Event
from tests.support.recording import Sink
from tests.support.waiting import wait_until

KINDS = {
    "unfused": lambda parameters: SGD(parameters, lr=0.1),
    "fused": lambda parameters: Adam(parameters, lr=0.1, fused=True),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """An optimizer that leaves skipping to the scaler, and one that does it by itself."""
    return KINDS[request.param]


def norms(model: nn.Module, scale: float) -> dict[str, float]:
    """The true norms of gradients that carry *scale*."""
    return {
        name: float(parameter.grad.double().norm()) / scale
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def near(true: list[dict[str, float]]) -> list[Any]:
    """Equal within 1e-5."""
    return [pytest.approx(expected, rel=1e-5) for expected in true]


def train(
    model: nn.Module,
    optimizer: Optimizer,
    scaler: GradScaler,
    watch: Any,
    *,
    overflow: tuple[int, ...] = (),
    collect: str = "",
    steps: int = 4,
) -> list[dict[str, float]]:
    """Train; return the true norms of each step."""
    true = []
    for step in range(steps):
        optimizer.zero_grad()
        factor = math.inf if step in overflow else 1.0
        scaler.scale(model(torch.ones(4, 8)).square().mean() * factor).backward()
        true.append(norms(model, scaler.get_scale()))
        if collect == "before unscaling":
            watch.collect()
        if collect:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        if collect == "after unscaling":
            watch.collect()
        scaler.step(optimizer)
        scaler.update()
    return true


@pytest.mark.parametrize("collect", ["", "before unscaling", "after unscaling"])
def test_the_numbers_are_unscaled(aggregator: Sink, kind: Any, collect: str) -> None:
    model = nn.Linear(8, 3)
    optimizer = kind(model.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    watch = aggregator.attach(model, optimizer, scaler=scaler)
    true = train(model, optimizer, scaler, watch, collect=collect)
    sent = aggregator.stats(4)

    assert [aggregator.layers(stats) for stats in sent] == near(true)
    assert [stats.scalars["loss_scale"] for stats in sent] == [1024.0, 1024.0, 2048.0, 2048.0]
    assert {stats.labels["scaled"] for stats in sent} == {False}
    assert {stats.labels["point"] for stats in sent} == {"collect" if collect else "backward"}


@pytest.mark.parametrize("collect", ["", "before unscaling", "after unscaling"])
def test_each_skipped_step_has_a_record(aggregator: Sink, kind: Any, collect: str) -> None:
    model = nn.Linear(8, 3)
    optimizer = kind(model.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    watch = aggregator.attach(model, optimizer, scaler=scaler)
    train(model, optimizer, scaler, watch, overflow=(1, 2), collect=collect, steps=5)
    sent = aggregator.stats(5)
    wait_until(lambda: len(aggregator.of(Event)) == 2, "two events")

    assert [stats.step for stats in sent] == [0, 1, 2, 3, 4]
    bad = [not all(map(math.isfinite, aggregator.layers(stats).values())) for stats in sent]
    assert bad == [False, True, True, False, False]
    assert [stats.labels["taken"] for stats in sent] == [not skipped for skipped in bad]
    assert aggregator.of(Event) == [
        Event(name="skipped_step", step=1, data={"optimizer": 0, "loss_scale": 1024.0}),
        Event(name="skipped_step", step=2, data={"optimizer": 0, "loss_scale": 512.0}),
    ]


def test_a_record_of_several_steps_says_of_the_last_whether_it_was_taken(
    aggregator: Sink, kind: Any
) -> None:
    model = nn.Linear(8, 3)
    optimizer = kind(model.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    watch = aggregator.attach(model, optimizer, scaler=scaler, report_every=2)
    train(model, optimizer, scaler, watch, overflow=(0, 3), steps=6)
    sent = aggregator.stats(3)

    assert [stats.step for stats in sent] == [1, 3, 5]
    assert [stats.labels["taken"] for stats in sent] == [True, False, True]


def test_of_two_optimizers_the_skipped_one_is_named(aggregator: Sink) -> None:
    model = nn.ModuleDict({"g": nn.Linear(8, 1), "d": nn.Linear(8, 1)})
    optimizers = [SGD(model[name].parameters(), lr=0.1) for name in ("g", "d")]
    scaler = GradScaler("cpu", init_scale=64.0)
    aggregator.attach(model, optimizers, scaler=scaler)
    for step in range(2):
        for name, optimizer in zip(("g", "d"), optimizers, strict=True):
            optimizer.zero_grad()
            bad = name == "d" and step == 0
            loss = model[name](torch.ones(1, 8)).mean() * (math.nan if bad else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        scaler.update()
    sent = aggregator.stats(4)
    wait_until(lambda: aggregator.of(Event), "the event")

    assert [(stats.step, stats.part) for stats in sent] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (event,) = aggregator.of(Event)
    assert (event.step, event.data["optimizer"]) == (0, 1)


def test_some_optimizers_unscaled_and_others_not(aggregator: Sink, kind: Any) -> None:
    """`collect` between the two: each layer is divided by what it carried in the pass."""
    model = nn.ModuleDict({"g": nn.Linear(8, 1), "d": nn.Linear(8, 1)})
    optimizers = [kind(model[name].parameters()) for name in ("g", "d")]
    scaler = GradScaler("cpu", init_scale=64.0)
    watch = aggregator.attach(model, optimizers, scaler=scaler)
    scaler.scale(sum(model[name](torch.ones(1, 8)) for name in ("g", "d"))).backward()
    true = norms(model, 64.0)
    scaler.unscale_(optimizers[0])
    watch.collect()
    for optimizer in optimizers:
        scaler.step(optimizer)
    first, second = aggregator.stats(2)

    found = aggregator.layers(first) | aggregator.layers(second)
    assert found == pytest.approx(true, rel=1e-5)


def test_gradients_changed_after_unscaling_are_not_divided_again(
    aggregator: Sink, kind: Any
) -> None:
    """`collect` after clipping measures what is there then."""
    model = nn.Linear(8, 3)
    optimizer = kind(model.parameters())
    scaler = GradScaler("cpu", init_scale=64.0)
    watch = aggregator.attach(model, optimizer, scaler=scaler)
    scaler.scale(model(torch.ones(4, 8)).square().mean()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    watch.collect()
    scaler.step(optimizer)
    (stats,) = aggregator.stats(1)

    total = math.hypot(*aggregator.layers(stats).values())
    assert total == pytest.approx(0.01, rel=1e-3)
    assert stats.labels["scaled"] is False


def test_a_scaler_that_is_switched_off_is_passed_through(aggregator: Sink) -> None:
    """`GradScaler(enabled=False)` for runs in full precision."""
    model = nn.Linear(8, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", enabled=False)
    watch = aggregator.attach(model, optimizer, scaler=scaler)
    for _ in range(2):
        model(torch.ones(4, 8)).mean().backward()
        scaler.step(optimizer)
        scaler.update()

    assert [stats.step for stats in aggregator.stats(2)] == [0, 1]
    assert watch.stats()["faults"] == 0


def test_the_scaler_stays_as_it_is(aggregator: Sink) -> None:
    model = nn.Linear(8, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu")
    before = dict(vars(scaler))
    aggregator.attach(model, optimizer, scaler=scaler)
    assert vars(scaler) == before
    scaler.scale(model(torch.ones(4, 8)).mean()).backward()
    assert scaler.step(optimizer) is None
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        scaler.step(optimizer)
    scaler.update()
    copied = copy.deepcopy(scaler)

    assert pickle.loads(pickle.dumps(scaler)).get_scale() == scaler.get_scale()
    assert vars(copied).keys() == before.keys()


def test_of_two_watches_on_one_scaler_one_may_be_closed(aggregator: Sink) -> None:
    models = [nn.Linear(8, 3) for _ in range(2)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    scaler = GradScaler("cpu", init_scale=64.0)
    aggregator.attach(models[0], optimizers[0], scaler=scaler)
    aggregator.attach(models[1], optimizers[1], scaler=scaler, run="other").close()
    train(models[0], optimizers[0], scaler, None, overflow=(1,))

    wait_until(lambda: aggregator.of(Event), "the event")
    assert [event.step for event in aggregator.of(Event)] == [1]


def test_the_optimizer_is_watched_when_it_steps_without_the_scaler(aggregator: Sink) -> None:
    """A script may give a scaler and use it for some steps only; the others are not divided."""
    model = nn.Linear(8, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=64.0)
    aggregator.attach(model, optimizer, scaler=scaler)
    true = []
    for uses_scaler in (False, True, False):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).mean()
        (scaler.scale(loss) if uses_scaler else loss).backward()
        true.append(norms(model, 64.0 if uses_scaler else 1.0))
        if uses_scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    sent = aggregator.stats(3)

    assert [aggregator.layers(stats) for stats in sent] == near(true)
    assert [stats.scalars.get("loss_scale") for stats in sent] == [None, 64.0, None]


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 3])
def test_a_step_with_a_closure_is_not_divided_by_another_training_s_scaler(
    aggregator: Sink, passes: int
) -> None:
    old = GradScaler("cpu", init_scale=1024.0)
    old.scale(torch.ones(()))
    model = nn.Linear(8, 3)
    _, optimizer = aggregator.attach_sgd(model)
    true = []

    def backward() -> None:
        model(torch.ones(4, 8)).square().mean().backward()

    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(passes - 1):
            backward()
        optimizer.step(backward)
        true.append(norms(model, 1.0))
    sent = aggregator.stats(3)

    for column in ("l2", *(["l2_max"] if passes > 1 else [])):
        assert [aggregator.layers(stats, column) for stats in sent] == near(true)
    assert not any("loss_scale" in stats.scalars for stats in sent)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_scaler_that_was_not_given_is_found_at_the_first_step(
    aggregator: Sink, kind: Any, passes: int, others: int
) -> None:
    alive = [GradScaler("cpu", init_scale=8.0) for _ in range(others)]
    for other in alive:
        other.scale(torch.ones(()))
    model = nn.Linear(8, 3)
    optimizer = kind(model.parameters())
    watch = aggregator.attach(model, optimizer)
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    true = []
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(passes):
            scaler.scale(model(torch.ones(4, 8)).square().mean()).backward()
        true.append(norms(model, scaler.get_scale()))
        scaler.step(optimizer)
        scaler.update()
    sent = aggregator.stats(3)

    for column in ("l2", *(["l2_max"] if passes > 1 else [])):
        assert [aggregator.layers(stats, column) for stats in sent] == near(true)
    assert [stats.scalars["loss_scale"] for stats in sent] == [1024.0, 2048.0, 4096.0]
    assert {stats.labels["scaled"] for stats in sent} == {False}
    assert {other.get_scale() for other in alive} <= {8.0}
    assert watch.stats()["faults"] == 0


@pytest.mark.slow
def test_before_the_first_step_that_is_taken_the_scale_is_unknown(aggregator: Sink) -> None:
    """A step skipped before that says so, and the log hears once what to do."""
    model = nn.Linear(8, 3)
    watch, optimizer = aggregator.attach_sgd(model)
    scaler = GradScaler("cpu", init_scale=1024.0)
    train(model, optimizer, scaler, watch, overflow=(0, 1, 3), steps=6)
    sent = aggregator.stats(6)

    assert [stats.labels["scaled"] for stats in sent] == [None, None, *[False] * 4]
    assert [stats.labels["taken"] for stats in sent] == [False, False, True, False, True, True]
    wait_until(lambda: aggregator.of(Event), "the event")
    assert [event.step for event in aggregator.of(Event)] == [3]
    assert watch.stats()["faults"] == 2
    assert "attach(scaler=...)" in str(watch.stats()["last_error"])
