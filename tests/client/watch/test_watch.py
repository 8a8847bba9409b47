"""Records of a training script: the right numbers, at the right step, labelled as what they are."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import math
import time
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

import gradwatch
from gradwatch_wire import Alert, Bye, Manifest, Stats
from gradwatch_wire.columns import UPDATE_COLUMNS
from tests.support.recording import Sink
from tests.support.waiting import wait_until


def mlp() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 1200), nn.ReLU(), nn.Linear(1200, 1))


def attached(aggregator: Sink, **settings: Any) -> tuple[Any, gradwatch.Watch]:
    model = mlp()
    return model, aggregator.attach(model, **settings)


def backward(model: nn.Module, scale: float = 1.0) -> Tensor:
    """Forward and backward; the loss."""
    loss: Tensor = model(torch.ones(4, 8)).square().mean() * scale
    loss.backward()
    return loss.detach()


def norms(model: nn.Module) -> dict[str, float]:
    """The truth: the norm of each gradient, in float64."""
    return {
        name: float(parameter.grad.double().norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def close(expected: dict[str, float]) -> object:
    """Equal within 1e-5."""
    return pytest.approx(expected, rel=1e-5, abs=0)


@pytest.mark.slow
def test_collect_sends_the_numbers_of_the_point_before_clipping(aggregator: Sink) -> None:
    """Norms, loss, learning rate and batch size of each step, and what they are."""
    model = mlp()
    watch, optimizer = aggregator.attach_sgd(model, lr=0.25)
    expected, losses = [], []
    for _ in range(3):
        optimizer.zero_grad()
        loss = backward(model)
        expected.append(norms(model))
        losses.append(float(loss))
        watch.collect(loss=loss, batch_size=4)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    sent = aggregator.stats(3)

    assert [stats.step for stats in sent] == [0, 1, 2]
    assert [aggregator.layers(stats) for stats in sent] == [close(item) for item in expected]
    assert [stats.scalars["loss"] for stats in sent] == losses
    assert {(stats.scalars["lr"], stats.scalars["batch_size"]) for stats in sent} == {(0.25, 4.0)}
    assert {(stats.part, stats.parts) for stats in sent} == {(0, 1)}
    labels = {"point": "collect", "reduction": "none", "scaled": False, "path": "rows"}
    assert [stats.labels for stats in sent] == [labels | {"taken": True}] * 3
    assert [set(stats.columns) for stats in sent] == [{"l2", *UPDATE_COLUMNS}, {"l2"}, {"l2"}]


@pytest.mark.slow
def test_without_collect_the_end_of_the_backward_pass_is_the_point(aggregator: Sink) -> None:
    model = mlp()
    _, optimizer = aggregator.attach_sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        expected = norms(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    sent = aggregator.stats(2)

    assert [stats.labels["point"] for stats in sent] == ["backward"] * 2
    assert aggregator.layers(sent[1]) == close(expected)
    assert "loss" not in sent[0].scalars


@pytest.mark.slow
def test_gradients_changed_by_hand_are_measured_anew_by_collect(aggregator: Sink) -> None:
    """A hand-made all-reduce comes after the pass."""
    model = mlp()
    watch, optimizer = aggregator.attach_sgd(model)
    for by_hand in (True, False):
        optimizer.zero_grad()
        backward(model)
        if by_hand:
            for parameter in list(model.parameters())[2:3]:
                assert parameter.grad is not None
                parameter.grad *= 0.5
            expected = norms(model)
        watch.collect(loss=0.5)
        optimizer.step()
    first, second = aggregator.stats(2)

    assert aggregator.layers(first) == close(expected)
    assert [stats.labels["point"] for stats in (first, second)] == ["collect"] * 2
    assert [set(stats.columns) for stats in (first, second)] == [{"l2", *UPDATE_COLUMNS}, {"l2"}]
    assert watch.stats()["faults"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("collects", [True, False])
def test_clipped_gradients_claim_no_order_of_the_layers(aggregator: Sink, collects: bool) -> None:
    """Clipping spreads a NaN to all layers: the order does not show where it began then."""
    model = mlp()
    watch, optimizer = aggregator.attach_sgd(model)
    for clips in (False, True, False):
        optimizer.zero_grad()
        backward(model)
        if clips and not collects:  # a step without a pass of its own
            optimizer.step()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if collects:
            watch.collect()
        optimizer.step()
    sent = aggregator.stats(3 if collects else 4)
    orders = {each.manifest_id: each.order for each in aggregator.of(Manifest)}
    order = [orders[stats.manifest_id] for stats in sent]

    assert order == ["forward"] * (1 if collects else 2) + ["registration", "forward"]


@pytest.mark.slow
def test_collect_several_times_a_step_is_told_once(
    aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """The steps are those of the optimizer, whatever is called in between."""
    model = mlp()
    watch, optimizer = aggregator.attach_sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        for loss in (1.0, 2.0, 6.0):
            backward(model)
            watch.collect(loss=loss)
        optimizer.step()
    sent = aggregator.stats(3)

    assert [stats.step for stats in sent] == [0, 1, 2]
    assert [stats.scalars["loss"] for stats in sent] == [3.0] * 3
    assert watch.stats()["collected"] == 3
    assert caplog.text.count("called several times in one optimizer step") == 1


@pytest.mark.slow
def test_a_closure_is_not_called_twice(aggregator: Sink) -> None:
    """The hook looks on; `step(closure)` and what it returns are the optimizer's."""
    model = mlp()
    _, optimizer = aggregator.attach_sgd(model)
    backward(model)
    losses = iter([5.0])

    assert optimizer.step(lambda: next(losses)) == 5.0
    assert next(losses, None) is None
    aggregator.stats(1)


def test_the_manifest_comes_first_and_names_the_layers_in_forward_order(aggregator: Sink) -> None:
    model = nn.ModuleDict({"last": nn.Linear(3, 1), "first": nn.Linear(2, 3)})
    watch = aggregator.attach(model, groups={"head": "last.*"})
    for _ in range(3):
        model["last"](torch.tanh(model["first"](torch.ones(1, 2)))).sum().backward()
        watch.collect()
    aggregator.stats(3)
    (manifest,) = aggregator.of(Manifest)

    assert aggregator.stored[0].record == manifest
    assert manifest.names == ("first.weight", "first.bias", "last.weight", "last.bias")
    assert manifest.numel.unpack() == [6, 3, 3, 1]
    assert manifest.order == "forward"
    assert manifest.groups == {"head": (2, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("explicit", [True, False])
def test_every_third_step_is_collected(aggregator: Sink, explicit: bool) -> None:
    model = mlp()
    watch, optimizer = aggregator.attach_sgd(model, every=3)
    for _ in range(8):
        backward(model)
        if explicit:
            watch.collect(loss=1.0)
        optimizer.step()

    assert [stats.step for stats in aggregator.stats(3)] == [0, 3, 6]
    assert watch.stats()["collected"] == 3


def test_without_an_optimizer_each_collect_is_a_step(aggregator: Sink) -> None:
    model, watch = attached(aggregator)
    backward(model)
    for _ in range(3):
        watch.collect()
    sent = aggregator.stats(3)

    assert [stats.step for stats in sent] == [0, 1, 2]
    assert ["lr" in stats.scalars for stats in sent] == [False] * 3


@pytest.mark.slow
def test_the_step_time_is_that_of_one_step(aggregator: Sink) -> None:
    model = mlp()
    _, optimizer = aggregator.attach_sgd(model, every=2)
    backward(model)
    started = time.perf_counter()
    for _ in range(5):
        optimizer.step()
        time.sleep(0.02)
    took = time.perf_counter() - started
    first, *later = [stats.scalars.get("step_time_s", 0.0) for stats in aggregator.stats(3)]

    assert first == 0.0
    assert all(seconds >= 0.02 for seconds in later)
    assert 2 * sum(later) <= took


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nonfinite_gradients_are_counted_layer_by_layer(aggregator: Sink, value: float) -> None:
    """The norm says it too; other layers keep theirs."""
    model, watch = attached(aggregator)
    backward(model)
    fine = norms(model)["0.weight"]
    model[2].weight.grad[0, [3, 5]] = value
    stats = aggregator.collected(watch, loss=torch.tensor(value))
    bad, good = ("nans", "infs") if math.isnan(value) else ("infs", "nans")

    assert aggregator.layers(stats)["0.weight"] == pytest.approx(fine, rel=1e-5)
    assert str(aggregator.layers(stats)["2.weight"]) == str(value)
    assert aggregator.layers(stats, bad) == {
        "0.weight": 0, "0.bias": 0, "2.weight": 2, "2.bias": 0
    }  # fmt: skip
    assert set(aggregator.layers(stats, good).values()) == {0}
    assert str(stats.scalars["loss"]) == str(value)


def test_an_overflowing_norm_is_not_counted_as_inf(aggregator: Sink) -> None:
    """Large and finite is large and finite."""
    model, watch = attached(aggregator)
    backward(model)
    model[0].weight.grad.fill_(3e38)
    stats = aggregator.collected(watch)

    assert aggregator.layers(stats) == close(norms(model))
    assert set(stats.columns) == {"l2"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_measured_and_named(aggregator: Sink, dtype: torch.dtype) -> None:
    """The manifest says what the gradient is made of."""
    model = nn.Linear(8, 3).to(dtype)
    watch = aggregator.attach(model)
    model(torch.ones(1, 8, dtype=dtype)).sum().backward()
    stats = aggregator.collected(watch)

    assert aggregator.layers(stats) == close(norms(model))
    assert set(aggregator.of(Manifest)[0].dtypes) == {str(dtype).removeprefix("torch.")}


@pytest.mark.slow
def test_sparse_gradients_are_measured(aggregator: Sink) -> None:
    """An index that occurs twice counts with its sum, not twice."""
    embedding = nn.Embedding(50, 4, sparse=True)
    model = nn.Sequential(embedding, nn.Linear(4, 1))
    watch, optimizer = aggregator.attach_sgd(model)
    model(torch.tensor([3, 3, 7])).sum().backward()
    sparse = embedding.weight.grad
    assert sparse is not None
    expected = float(sparse.to_dense().double().norm())
    watch.collect()
    optimizer.step()
    (stats,) = aggregator.stats(1)

    assert sparse.is_sparse
    assert aggregator.layers(stats)["0.weight"] == pytest.approx(expected, rel=1e-5)
    assert watch.stats()["faults"] == 0


def test_a_nan_in_a_sparse_gradient_is_counted(aggregator: Sink) -> None:
    model = nn.Embedding(50, 4, sparse=True)
    watch = aggregator.attach(model)
    (model(torch.tensor([3])) * math.nan).sum().backward()
    stats = aggregator.collected(watch)

    assert aggregator.layers(stats, "nans") == {"weight": 4}


@pytest.mark.slow
def test_a_layer_that_is_unfrozen_later_gets_a_new_manifest(aggregator: Sink) -> None:
    """Frozen layers are not in the columns; back to an old set is back to its manifest.

    Those that had a gradient before are listed as frozen, which is a manifest of its own.

    Where the unfrozen layer belongs in the forward pass is known from the next pass with it.
    """
    model = mlp()
    model[0].requires_grad_(False)
    _, optimizer = aggregator.attach_sgd(model)
    for frozen in (True, False, True, False, False, True):
        model[0].requires_grad_(not frozen)
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    sent = aggregator.stats(6)
    manifests = aggregator.of(Manifest)

    assert [stats.manifest_id for stats in sent] == [1, 2, 3, 4, 4, 3]
    first, last = ("0.weight", "0.bias"), ("2.weight", "2.bias")
    assert [manifest.names for manifest in manifests] == [last, first + last, last, first + last]
    assert [manifest.frozen for manifest in manifests] == [(), (), first, ()]
    assert [manifest.unused for manifest in manifests] == [()] * 4
    assert [manifest.order for manifest in manifests] == [
        "forward",
        "registration",
        "forward",
        "forward",
    ]
    assert aggregator.layers(sent[5]) == close(norms(model))


def test_a_shared_weight_is_one_layer(aggregator: Sink) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    watch = aggregator.attach(model)
    backward(model)
    stats = aggregator.collected(watch)

    assert aggregator.layers(stats) == close(norms(model))
    assert set(aggregator.layers(stats)) == {"0.weight", "0.bias", "2.bias"}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("point", "given"),
    [
        ("scaled", "with the optimizer"),
        ("scaled", "alone"),
        ("unscaled", "with the optimizer"),
        ("unscaled", "alone"),
        ("optimizer_step", "with the optimizer"),
    ],
)
def test_numbers_under_a_loss_scale_are_unscaled(
    aggregator: Sink, given: str, point: str, fused: bool
) -> None:
    """Before and after `unscale_`, at the step of fused and other optimizers; the scale is told."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, fused=fused)
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    twin = copy.deepcopy(model)
    backward(twin)
    expected = norms(twin)
    watch = aggregator.attach(model, None if given == "alone" else optimizer, scaler=scaler)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 8)).square().mean()).backward()
        if point == "scaled":
            watch.collect()
        if point != "optimizer_step":
            scaler.unscale_(optimizer)
        if point == "unscaled":
            watch.collect()
        scaler.step(optimizer)
        scaler.update()
    sent = aggregator.stats(3)

    assert [aggregator.layers(stats) for stats in sent] == [close(expected)] * 3
    assert [stats.scalars["loss_scale"] for stats in sent] == [1024.0, 2048.0, 4096.0]
    assert [stats.labels["scaled"] for stats in sent] == [False] * 3


@pytest.mark.slow
def test_two_optimizers_make_two_parts_of_a_step(aggregator: Sink) -> None:
    models = {"generator": nn.Linear(8, 8), "critic": nn.Linear(8, 1)}
    optimizers = [
        torch.optim.SGD(models["critic"].parameters(), lr=0.1),
        torch.optim.SGD(models["generator"].parameters(), lr=0.2),
    ]
    watch = aggregator.attach(models, optimizers)
    for _ in range(2):
        models["critic"](models["generator"](torch.ones(1, 8)).detach()).sum().backward()
        optimizers[0].step()
        models["critic"](models["generator"](torch.ones(1, 8))).sum().backward()
        optimizers[1].step()
    sent = aggregator.stats(4)

    assert [(stats.step, stats.part, stats.parts) for stats in sent] == [
        *((0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2))
    ]
    assert [stats.scalars["lr"] for stats in sent] == [0.1, 0.2, 0.1, 0.2]
    assert ["step_time_s" in stats.scalars for stats in sent] == [False, False, True, False]
    assert [set(aggregator.layers(stats)) for stats in sent[:2]] == [
        {"critic.weight", "critic.bias"},
        {"generator.weight", "generator.bias"},
    ]
    assert [manifest.order for manifest in aggregator.of(Manifest)] == ["forward", "forward"]
    assert watch.stats()["collected"] == 2


@pytest.mark.slow
def test_a_learning_rate_on_the_device_is_left_out(aggregator: Sink) -> None:
    """Reading it would make the training wait."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    aggregator.attach(model, optimizer)
    backward(model)
    optimizer.step()

    assert "lr" not in aggregator.stats(1)[0].scalars


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"loss": torch.ones(2)}, "loss: a number or a one-element tensor, got shape (2,)"),
        ({"loss": torch.ones(1, dtype=torch.complex64)}, "loss: a number or a one-element tensor"),
        ({"loss": "low"}, "could not convert string to float"),
        ({"loss": [1.0]}, "TypeError"),
        ({"step": -1}, "step: an integer from 0"),
        ({"step": 1.0}, "step: an integer from 0"),
        ({"step": True}, "step: an integer from 0"),
        ({"step": 1 << 53}, "step: an integer from 0"),
        ({"batch_size": torch.tensor(4)}, "batch_size: a number, got Tensor"),
        ({"batch_size": "4"}, "batch_size: a number, got str"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_counted_and_left_out(
    aggregator: Sink, wrong: dict[str, Any], fault: str
) -> None:
    model, watch = attached(aggregator)
    backward(model)
    watch.collect(**({"loss": 2.5} | wrong))
    watch.collect()
    sent = aggregator.stats(2)

    assert [stats.step for stats in sent] == [0, 1]
    assert aggregator.layers(sent[0]) == close(norms(model))
    assert set(wrong).isdisjoint(sent[0].scalars)
    assert ("loss" in sent[0].scalars) == ("loss" not in wrong)
    assert watch.stats()["faults"] == 1
    assert fault in str(watch.stats()["last_error"])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (2, 2.0),
        (2.5, 2.5),
        (math.inf, math.inf),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([[2.5]], requires_grad=True), 2.5),
        (torch.tensor(2.5, dtype=torch.bfloat16), 2.5),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (torch.tensor(3), 3.0),
    ],
    ids=str,
)
def test_a_loss_may_be_any_single_number(aggregator: Sink, loss: Any, expected: float) -> None:
    """A Python number or a tensor of one element, also one that belongs to a graph."""
    model, watch = attached(aggregator)
    backward(model)
    watch.collect(loss=loss)

    assert aggregator.stats(1)[0].scalars["loss"] == expected


def test_numbers_are_those_of_the_call_not_of_later(aggregator: Sink) -> None:
    """Training overwrites gradients, loss and scale at once; what was collected stays."""
    model = mlp().double()
    scaler = GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))
    watch = aggregator.attach(model, scaler=scaler)
    loss: Tensor = model(torch.ones(4, 8, dtype=torch.float64)).square().mean()
    loss.backward()
    loss = loss.detach()
    expected, value = {name: norm / 1024.0 for name, norm in norms(model).items()}, float(loss)
    watch.collect(loss=loss)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.zero_()
    loss.zero_()
    scaler.update(1.0)
    (stats,) = aggregator.stats(1)

    assert stats.scalars["loss"] == value
    assert stats.scalars["loss_scale"] == 1024.0
    assert aggregator.layers(stats) == close(expected)


def test_no_gradients_at_all_is_told_once(
    aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong order of calls, most likely; the log hears of it once, the counter always."""
    watch = aggregator.attach(mlp())
    for _ in range(3):
        watch.collect()

    assert watch.stats()["collected"] == 0
    assert watch.stats()["faults"] == 3
    assert watch.stats()["last_error"] == "no gradients: at step 2 no watched parameter had one"
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("gradwatch: no gradients: at step 0 no watched parameter had")
    assert warnings[0].endswith("; training goes on (told once)")


class Still(torch.optim.Optimizer):
    """An optimizer that leaves everything as it is."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


@pytest.mark.slow
def test_a_layer_that_cannot_be_measured_does_not_disturb_training(aggregator: Sink) -> None:
    """C44: it costs its own number; the record comes with the others, and one line says which."""
    plain = nn.Parameter(torch.ones(3))
    odd = nn.Parameter(torch.ones(3, device="meta"))  # has no numbers at all
    optimizer = Still([plain, odd])
    watch = aggregator.attach(nn.ParameterList([plain, odd]), optimizer)
    for step in range(3):
        plain.grad = torch.ones(3)
        odd.grad = torch.ones(3, device="meta") if step == 1 else None
        optimizer.step()
    sent = aggregator.stats(3)

    assert [stats.step for stats in sent] == [0, 1, 2]
    assert [aggregator.layers(stats).keys() for stats in sent] == [{"0"}] * 3
    assert watch.stats()["collected"] == 3
    assert watch.stats()["faults"] == 1
    why = "odd gradient: layer 1: a gradient on the meta device cannot be measured; the others are"
    assert watch.stats()["last_error"] == why


def test_the_counters_add_up(aggregator: Sink) -> None:
    model, watch = attached(aggregator)
    keys = [
        "pace",
        "collected",
        "bad_step",
        "dropped",
        "oversize",
        "sent",
        "acked",
        "evicted",
        "pending",
    ]
    keys += ["spilled", "spill_dropped", "replayed", "moves", "endpoint", "faults", "last_error"]
    assert list(watch.stats()) == keys
    backward(model)
    for _ in range(5):
        watch.collect()
    wait_until(lambda: watch.stats()["acked"] == 6, "the manifest and 5 STATS acknowledged")

    counts = [5, -1, 0, 0, 6, 6, 0, 0, 0, 0, 0, 0, aggregator.endpoint, 0, ""]
    assert watch.stats() == dict(zip(keys, ["each step in full", *counts], strict=True))


def test_alerts_reach_the_training_script(aggregator: Sink) -> None:
    heard: list[dict[str, Any]] = []
    aggregator.attach(mlp(), on_alert=heard.append)
    wait_until(lambda: aggregator.hellos, "HELLO")
    aggregator.send(Alert(alert={"rule": "nonfinite", "origin": {"value": math.nan, "rank": 1}}))
    wait_until(lambda: heard, "the alert")

    assert heard[0]["rule"] == "nonfinite"
    assert math.isnan(heard[0]["origin"]["value"])
    assert heard[0]["origin"]["rank"] == 1


@pytest.mark.parametrize("error", [RuntimeError("pager on fire"), SystemExit(3)], ids=repr)
def test_a_callback_that_raises_stops_nothing(aggregator: Sink, error: BaseException) -> None:
    """`sys.exit` in a thread would end that thread without a word."""
    calls = []

    def on_alert(alert: dict[str, Any]) -> None:
        calls.append(alert["id"])
        raise error

    model, watch = attached(aggregator, on_alert=on_alert)
    wait_until(lambda: aggregator.hellos, "HELLO")
    aggregator.send(Alert(alert={"id": "a"}))
    aggregator.send(Alert(alert={"id": "b"}))
    wait_until(lambda: calls == ["a", "b"], "both alerts")
    backward(model)
    watch.collect()

    aggregator.stats(1)
    assert watch.stats()["faults"] == 2
    assert watch.stats()["last_error"] == f"on_alert: {error!r}"


def test_alerts_without_a_callback_are_let_go(aggregator: Sink) -> None:
    model, watch = attached(aggregator)
    wait_until(lambda: aggregator.hellos, "HELLO")
    for _ in range(10):
        aggregator.send(Alert(alert={"id": "a"}))
    wait_until(lambda: not aggregator._outbox, "the alerts are on their way")
    backward(model)
    watch.collect()
    wait_until(lambda: watch.stats()["acked"] == 2, "an answer from after the alerts")

    assert watch._sender.session.alerts == []


def test_a_callback_may_close_the_watch(aggregator: Sink) -> None:
    made: list[gradwatch.Watch] = []
    made.append(aggregator.attach(mlp(), on_alert=lambda _: made[0].close()))
    wait_until(lambda: aggregator.hellos, "HELLO")
    aggregator.send(Alert(alert={"id": "a"}))
    wait_until(lambda: aggregator.of(Bye), "BYE")

    assert made[0].stats()["faults"] == 0


def test_a_refusal_is_told_once_and_ends_sending(
    aggregator: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator.refusal = "the run name is taken"
    model, watch = attached(aggregator)
    wait_until(lambda: watch.stats()["faults"], "the refusal")
    backward(model)
    watch.collect()
    watch.close()

    assert watch.stats()["last_error"] == "refused: the aggregator says: 'the run name is taken'"
    assert watch.stats()["faults"] == 1
    assert aggregator.stored == []
    assert "the run name is taken" in caplog.text


def end_in_handler(watch: Any, end: str) -> None:
    """Close the watch while an exception is handled."""

    def train() -> Any:
        try:
            yield 1
        finally:
            watch.close()

    def handle() -> None:
        try:
            raise ValueError("oops")
        except ValueError:
            watch.close()

    def raise_on() -> None:
        try:
            raise ValueError("oops")
        except ValueError:
            watch.close()
            raise

    def fall_through() -> None:
        try:
            raise ValueError("oops")
        finally:
            watch.close()

    if end == "generator that is dropped":
        steps = train()
        next(steps)
        steps.close()
    elif end == "except":
        handle()
    else:
        with pytest.raises(ValueError, match="oops"):
            fall_through() if end == "plain finally" else raise_on()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("close", "closed"),
        ("with", "closed"),
        ("with an exception", "exception"),
        ("with sys.exit", "closed"),
        ("finally", "exception"),
        ("finally of sys.exit", "closed"),
        ("except", "closed"),
        ("except and raise", "exception"),
        ("plain finally", "exception"),
        ("generator that is dropped", "closed"),
    ],
)
def test_bye_says_how_training_ended(aggregator: Sink, end: str, reason: str) -> None:
    error = SystemExit(3) if "sys.exit" in end else ValueError("oops")
    watch = aggregator.attach(mlp())
    if end == "close":
        watch.close()
    elif end == "with":
        with watch:
            pass
    elif end.startswith("with"):
        with pytest.raises(type(error)), watch:
            raise error
    elif end.startswith(("except", "plain", "generator")):
        end_in_handler(watch, end)
    else:
        with pytest.raises(type(error)), contextlib.closing(watch):
            raise error

    assert [bye.reason for bye in aggregator.of(Bye)] == [reason]
    assert aggregator.stored[-1].record == aggregator.of(Bye)[0]


def test_what_was_collected_before_close_is_sent_before_bye(aggregator: Sink) -> None:
    """`close` returns when it is stored."""
    model, watch = attached(aggregator)
    backward(model)
    for _ in range(50):
        watch.collect()
    watch.close()
    kinds = [type(envelope.record) for envelope in aggregator.stored]

    assert kinds == [Manifest, *[Stats] * 50, Bye]
    assert [envelope.seq for envelope in aggregator.stored] == list(range(1, 53))


@pytest.mark.slow
def test_after_close_nothing_is_left(aggregator: Sink) -> None:
    model = mlp()
    watch, optimizer = aggregator.attach_sgd(model)
    watch.close()
    count = len(aggregator.stored)
    watch.close()
    backward(model)
    watch.collect(loss=1.0)
    optimizer.step()

    assert not watch._sender.is_alive()
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert watch.stats()["collected"] == 0
    assert len(aggregator.stored) == count


@pytest.mark.slow
def test_a_closed_watch_does_not_keep_the_model_in_memory(aggregator: Sink) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = gradwatch.attach(model, optimizer, run="test", endpoint=aggregator.endpoint)
    alive = weakref.ref(watch)
    watch.close()
    del watch
    gc.collect()

    assert alive() is None
    assert optimizer.param_groups


@pytest.mark.slow
def test_copies_and_checkpoints_of_a_watched_model_are_plain(
    aggregator: Sink, tmp_path: Any
) -> None:
    """Hooks are not copied, and nothing of gradwatch is in a checkpoint."""
    model = mlp()
    _, optimizer = aggregator.attach_sgd(model)
    clone = copy.deepcopy(model)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c")
    torch.save(model, tmp_path / "m")
    loaded = torch.load(tmp_path / "m", weights_only=False)

    for other in (clone, loaded):
        assert not any(parameter._post_accumulate_grad_hooks for parameter in other.parameters())
    assert b"gradwatch" not in (tmp_path / "c").read_bytes() + (tmp_path / "m").read_bytes()


@pytest.mark.slow
def test_a_watch_in_a_model_is_copied_and_pickled_as_one_that_does_nothing(
    aggregator: Sink, tmp_path: Any
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.watch = aggregator.attach(model, optimizer)
    torch.save(model, tmp_path / "m")
    loaded = torch.load(tmp_path / "m", weights_only=False)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for other in (copy.deepcopy(model), loaded, averaged.module):
        assert isinstance(other.watch, gradwatch.NullWatch)
        backward(other)
        other.watch.collect()
    backward(model)
    optimizer.step()

    aggregator.stats(1)
    assert isinstance(model.watch, gradwatch.Watch)


@pytest.mark.slow
def test_a_log_handler_that_raises_is_not_felt(aggregator: Sink) -> None:
    """Neither in `attach` nor in training."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    handler, logger = Broken(), logging.getLogger("gradwatch")
    logger.addHandler(handler)
    try:
        model = mlp()
        watch, optimizer = aggregator.attach_sgd(model)
        optimizer.step()
    finally:
        logger.removeHandler(handler)

    assert watch.stats()["faults"] == 1


@pytest.mark.slow
def test_what_was_not_delivered_is_told_at_close(caplog: pytest.LogCaptureFixture) -> None:
    """Number of records, their endpoint, and advice."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = gradwatch.attach(model, optimizer, run="test", endpoint="tcp://127.0.0.1:9")
    for _ in range(3):
        backward(model)
        optimizer.step()
    watch.close()
    (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]

    said = "gradwatch: 5 pending records were not delivered to tcp://127.0.0.1:9: no aggregator"
    assert told.startswith(said)  # three steps, the names of the layers, and the end
    assert watch.stats()["pending"] == 5
    assert "gradwatch serve" in told
