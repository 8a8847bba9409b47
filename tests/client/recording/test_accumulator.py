"""Several collections in one record: nothing that happened between two reports is lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch._recording.accumulator import SampleAccumulator
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.devices import pack
from gradwatch_wire import Stats
from gradwatch_wire.columns import MEASURED_COLUMNS
from tests.support.recording import Sink

NAN = math.nan


def set_gradients(model: nn.Module, norm: float) -> None:
    """Give both parameters gradients of that norm."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        parameter.grad.view(-1)[0] = norm


def test_an_explosion_in_an_early_batch_is_in_the_report(aggregator: Sink) -> None:
    """The last, the largest and the mean norm of three steps (row B2)."""
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model, report_every=3)
    for norm in (1.0, 500.0, 3.0, 2.0, 2.0, 2.0):
        set_gradients(model, norm)
        watch.collect()
    first, second = aggregator.stats(2)

    assert [first.step, second.step] == [2, 5]
    assert [aggregator.layers(first, name)["bias"] for name in ("l2", "l2_max", "l2_mean")] == [
        3.0,
        500.0,
        168.0,
    ]
    assert [aggregator.layers(second, name)["weight"] for name in ("l2", "l2_max", "l2_mean")] == [
        2.0,
        2.0,
        2.0,
    ]
    assert first.scalars["collections"] == 3.0
    assert math.isnan(first.scalars["first_nonfinite_step"])
    assert watch.stats()["collected"] == 6


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_bad_step_of_a_report_is_kept(aggregator: Sink, value: float) -> None:
    """A NaN stays in the maximum, and its step has a number of its own."""
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model, report_every=4)
    for norm in (1.0, value, value, 1.0):
        set_gradients(model, norm)
        watch.collect()
    (stats,) = aggregator.stats(1)

    assert stats.scalars["first_nonfinite_step"] == 1.0
    assert str(aggregator.layers(stats, "l2_max")["bias"]) == str(value)
    assert aggregator.layers(stats)["bias"] == 1.0


@pytest.mark.usefixtures("rank_0_of_2")
@pytest.mark.parametrize("on_device", [True, False])
def test_what_a_rank_shows_is_that_of_the_first_bad_step(aggregator: Sink, on_device: bool) -> None:
    """By the later ones the weights are bad on every rank; before there is one, the last (C13)."""
    model = nn.Linear(4, 1, bias=False)
    watch = aggregator.attach(model, report_every=3)
    for factor, loss in ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (1.0, 1.0), (2.0, 2.0), (NAN, NAN)):
        model.zero_grad()
        model(torch.full((1, 4), factor)).sum().backward()
        if factor == 2.0 and len(aggregator.of(Stats)) == 1:
            assert model.weight.grad is not None
            model.weight.grad[0, 0] = NAN  # as a reduction does: another rank's
        watch.collect(loss=torch.tensor(loss) if on_device else loss)
        if factor == 3.0:
            aggregator.stats(1)
    fine, bad = aggregator.stats(2)

    assert (fine.scalars["local_probe"], fine.scalars["first_nonfinite_loss"]) == (12.0, 3.0)
    assert bad.scalars["first_nonfinite_step"] == 4.0
    assert (bad.scalars["local_probe"], bad.scalars["first_nonfinite_loss"]) == (8.0, 2.0)
    assert math.isnan(bad.scalars["loss"])


def test_a_loss_that_was_not_always_given_is_of_no_known_step(aggregator: Sink) -> None:
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model, report_every=2)
    for losses in ((1.0, None), (None, 1.0)):
        for loss in losses:
            set_gradients(model, 1.0)
            watch.collect(loss=loss)
    sent = aggregator.stats(2)

    assert ["first_nonfinite_loss" in stats.scalars for stats in sent] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("value", [1.0, math.nan])
def test_the_first_bad_step_has_the_number_that_its_record_has(
    aggregator: Sink, value: float
) -> None:
    """Passes are measured before the script says which step they belong to."""
    model = nn.Linear(4, 2)
    watch, optimizer = aggregator.attach_sgd(model, lr=0.0)
    for _ in range(2):
        (model(torch.ones(1, 4)).sum() * value).backward()
    watch.collect(step=500)
    optimizer.step()
    (stats,) = aggregator.stats(1)

    assert stats.step == 500
    assert str(stats.scalars["first_nonfinite_step"]) == ("nan" if value == 1.0 else "500.0")


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (2.0, 3.0, 3.0),
        (-1.0, 3.0, -1.0),
        (3.0, -1.0, -1.0),
        (-1.0, -1.0, -1.0),
        (-1.0, math.nan, math.nan),
        (math.inf, -1.0, math.inf),
    ],
)
def test_the_largest_local_norm_is_unknown_where_one_was(
    first: float, second: float, kept: float
) -> None:
    """C11: what is known to be bad stays known."""
    cpu = torch.device("cpu")
    samples = []
    for norm in (first, second):
        norms = {name: torch.tensor([norm], dtype=torch.float64) for name in ("l2", "local_l2")}
        samples.append(StepSample(step=0, layers=(0,), places={cpu: [0]}, columns={cpu: norms}))
    both = SampleAccumulator(samples[0])
    for sample in samples:
        both.add(sample)

    assert both.result().columns[cpu]["local_l2"].tolist() == pytest.approx([kept], nan_ok=True)


def test_the_intervals_of_collecting_and_reporting_are_two(aggregator: Sink) -> None:
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model, every=2, report_every=3)
    for step in range(12):
        set_gradients(model, float(step))
        watch.collect()
    sent = aggregator.stats(2)

    assert [stats.step for stats in sent] == [4, 10]
    assert [aggregator.layers(stats, "l2_mean")["bias"] for stats in sent] == [2.0, 8.0]


def backward(model: nn.Module, norm: float) -> None:
    """Add gradients of that norm to both parameters in a backward pass."""
    sum(parameter.view(-1)[0] * norm for parameter in model.parameters()).backward()  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [True, False])
def test_each_micro_batch_is_in_the_maximum(aggregator: Sink, asked: bool) -> None:
    model = nn.Linear(4, 2)
    watch, optimizer = aggregator.attach_sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        for norm in (1.0, 7.0, -5.0):
            backward(model, norm)
            if asked:
                watch.collect(loss=norm, micro_batch=norm > 0)
        optimizer.step()
    sent = aggregator.stats(2)

    assert [stats.step for stats in sent] == [0, 1]
    assert [aggregator.layers(stats, "l2_max")["bias"] for stats in sent] == [8.0, 8.0]
    assert [aggregator.layers(stats, "l2_mean")["bias"] for stats in sent] == [4.0, 4.0]
    assert [aggregator.layers(stats)["bias"] for stats in sent] == [3.0, 3.0]
    assert [stats.scalars["collections"] for stats in sent] == [3.0, 3.0]
    assert [stats.scalars.get("loss") for stats in sent] == [1.0 if asked else None] * 2
    assert [stats.labels["point"] for stats in sent] == ["collect" if asked else "backward"] * 2
    assert watch.stats()["collected"] == 2
    assert watch.stats()["faults"] == 0


@pytest.mark.slow
def test_micro_batches_whose_gradients_are_made_by_hand(aggregator: Sink) -> None:
    """No pass shows them; `collect` does."""
    model = nn.Linear(4, 2)
    watch, optimizer = aggregator.attach_sgd(model)
    for _ in range(2):
        for norm in (1.0, 8.0, 3.0):
            set_gradients(model, norm)
            watch.collect(micro_batch=norm != 3.0)
        optimizer.step()
    sent = aggregator.stats(2)

    assert [stats.step for stats in sent] == [0, 1]
    assert [aggregator.layers(stats, "l2_max")["bias"] for stats in sent] == [8.0, 8.0]
    assert [aggregator.layers(stats)["bias"] for stats in sent] == [3.0, 3.0]
    assert watch.stats()["faults"] == 0


@pytest.mark.slow
def test_micro_batches_with_several_optimizers(aggregator: Sink) -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
    optimizers = [torch.optim.SGD(model[name].parameters(), lr=0.1) for name in ("a", "b")]
    aggregator.attach(model, optimizers)
    for norm in (9.0, -8.0):
        backward(model, norm)
    for optimizer in optimizers:
        optimizer.step()
    sent = aggregator.stats(2)

    assert [(stats.step, stats.part) for stats in sent] == [(0, 0), (0, 1)]
    assert [aggregator.layers(stats, "l2_max") for stats in sent] == [
        {"a.weight": 9.0, "a.bias": 9.0}, {"b.weight": 9.0, "b.bias": 9.0}
    ]  # fmt: skip


@pytest.mark.slow
def test_passes_and_several_steps_make_one_report(aggregator: Sink) -> None:
    """The mean is that of all passes of all steps, the maximum too."""
    model = nn.Linear(4, 2)
    _, optimizer = aggregator.attach_sgd(model, report_every=2)
    for norms in ((1.0, 7.0, -5.0), (2.0,)):
        optimizer.zero_grad()
        for norm in norms:
            backward(model, norm)
        optimizer.step()
    (stats,) = aggregator.stats(1)

    assert stats.step == 1
    assert stats.scalars["collections"] == 4.0
    assert aggregator.layers(stats)["bias"] == 2.0
    assert aggregator.layers(stats, "l2_max")["bias"] == 8.0
    assert aggregator.layers(stats, "l2_mean")["bias"] == 14.0 / 4


def test_a_report_that_is_not_due_yet_is_sent_at_the_end(aggregator: Sink) -> None:
    """Closing loses nothing."""
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model, report_every=100)
    for norm in (7.0, 1.0):
        set_gradients(model, norm)
        watch.collect()
    watch.close()
    (stats,) = aggregator.stats(1)

    assert stats.step == 1
    assert aggregator.layers(stats, "l2_max")["bias"] == 7.0


def test_other_layers_begin_another_record(aggregator: Sink) -> None:
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model, report_every=3)
    for step in range(4):
        set_gradients(model, float(step + 1))
        if step == 2:
            model.bias.grad = None
        watch.collect()
    watch.close()
    sent = aggregator.stats(3)

    assert [stats.step for stats in sent] == [1, 2, 3]
    assert [set(aggregator.layers(stats)) for stats in sent] == [
        {"weight", "bias"}, {"weight"}, {"weight", "bias"}
    ]  # fmt: skip
    assert aggregator.layers(sent[0], "l2_max")["bias"] == 2.0


@pytest.mark.parametrize("wrap", [float, torch.tensor])
def test_the_loss_of_a_report_is_weighted_by_samples(aggregator: Sink, wrap: Any) -> None:
    """(1 * 30 + 5 * 10) / 40, and the samples are added up (row B5)."""
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model, report_every=2)
    for loss, size in ((1.0, 30), (5.0, 10)):
        set_gradients(model, 1.0)
        watch.collect(loss=wrap(loss), batch_size=size)
    (stats,) = aggregator.stats(1)

    assert stats.scalars["loss"] == pytest.approx(2.0)
    assert stats.scalars["batch_size"] == 40.0


def test_nothing_between_two_reports_reads_from_the_device() -> None:
    """On meta tensors, which have no numbers to read: any look at one raises (rows B1, B2)."""
    device = torch.device("meta")
    accumulator = None
    for step in range(3):
        loss = [torch.ones((), device=device)]
        sample = StepSample(
            step=step,
            manifest_id=1,
            layers=(0, 1),
            device_scalars={"loss": loss, "local_probe": loss},
        )
        gradients = [torch.ones(n, device=device) for n in (3, 70_000)]
        sample.measure(gradients, lambda _: MEASURED_COLUMNS)
        sample.device_scalars["loss_scale"] = [torch.ones((), device=device)]
        sample.mark_scaled()
        sample.columns[device]["local_l2"] = sample.columns[device]["l2"].clone()
        accumulator = accumulator or SampleAccumulator(sample)
        accumulator.add(sample)
    assert accumulator is not None
    merged = accumulator.result()

    assert {"l2_max", "l2_mean", "local_l2"} <= set(merged.columns[device])
    assert pack([t for ts in merged.device_scalars.values() for t in ts]).device == device


@pytest.mark.parametrize("first_on_cpu", [True, False])
def test_numbers_of_the_cpu_and_an_accelerator_meet_on_the_accelerator(first_on_cpu: bool) -> None:
    """A copy to the CPU is not there yet when the CPU goes on. A meta tensor refuses one."""
    devices = [torch.device("cpu"), torch.device("meta")]
    far = devices[1]
    gradients = [torch.ones(3, device=device) for device in devices]
    accumulator = None
    for step in range(3):
        sample = StepSample(step=step, manifest_id=1, layers=(0, 1))
        sample.measure(gradients if first_on_cpu else gradients[::-1], lambda _: ("l2",))
        probe = [torch.ones((), device=device) for device in devices]
        sample.device_scalars["local_probe"] = probe if first_on_cpu else probe[::-1]
        sample.device_scalars["loss"] = [torch.ones(())]
        sample.device_scalars["loss_scale"] = [torch.ones((), device=far)]
        for columns in sample.columns.values():
            columns["local_l2"] = columns["l2"]
        sample.mark_scaled()
        accumulator = accumulator or SampleAccumulator(sample)
        accumulator.add(sample)
    assert accumulator is not None
    accumulator.remove_scale()
    merged = accumulator.result()

    for columns in merged.columns.values():
        assert {columns[name].device for name in ("l2_max", "l2_mean", "local_l2")} == {far}
    for name in ("first_nonfinite_step", "local_probe", "first_nonfinite_loss"):
        assert {tensor.device for tensor in merged.device_scalars[name]} == {far}


def test_samples_of_different_scales_are_unscaled_before_they_are_combined() -> None:
    cpu = torch.device("cpu")
    merged = None
    for scale in (2.0, 1024.0, 3.0):
        sample = StepSample(step=0, layers=(0,))
        sample.measure([torch.full((1,), 6.0 * scale)], lambda _: ("l2",))
        sample.add_scalar("loss_scale", torch.tensor(scale))
        sample.mark_scaled()
        merged = merged or SampleAccumulator(sample)
        merged.add(sample)
    assert merged is not None
    found = merged.result()

    assert {name: values.tolist() for name, values in found.columns[cpu].items()} == {
        "l2": [18.0], "l2_max": [6.0], "l2_mean": [6.0]
    }  # fmt: skip
    assert found.scaled == {"l2"}
