"""Collections that fail: told once, and of no cost to the training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from gradwatch_wire import Manifest, Stats
from gradwatch_wire.columns import MEASURED_COLUMNS, STATISTIC_COLUMNS
from gradwatch_wire.names import Label, Scalar
from tests.support.recording import Sink, placed


def with_gradients() -> nn.Linear:
    model = nn.Linear(4, 2)
    model(torch.ones(1, 4)).sum().backward()
    return model


def test_inside_a_graph_capture_nothing_is_collected(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = aggregator.attach(with_gradients())
    # There is none here to capture with.
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    watch.collect()
    assert watch.stats()["collected"] == watch.stats()["faults"] == 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    watch.collect()

    assert [stats.step for stats in aggregator.stats(1)] == [0]


def test_only_the_columns_asked_for_are_sent(aggregator: Sink) -> None:
    """`l2` always, for all else stands on it."""
    watch = aggregator.attach(with_gradients(), columns=["zeros", "linf"])
    stats = aggregator.collected(watch)

    assert list(stats.columns) == ["l2", "linf", "zeros"]
    assert stats.columns["zeros"].code == "<u8"
    assert aggregator.layers(stats, "linf") == {"weight": 1.0, "bias": 1.0}


@pytest.mark.usefixtures("rank_0_of_2")
def test_a_record_has_the_names_of_the_vocabulary_and_no_others(aggregator: Sink) -> None:
    names: set[str] = set()
    for local in (True, False):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = GradScaler("cpu")
        watch = aggregator.attach(
            *(model, optimizer),
            scaler=scaler,
            local=local,
            activations=True,
            columns=MEASURED_COLUMNS,
            report_every=2,
            weights_every=1,
            updates_every=1,
        )
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.full((1, 4), math.nan if step == 3 else 1.0)).sum()
            scaler.scale(loss).backward()
            watch.collect(loss=loss, batch_size=1)
            scaler.step(optimizer)
            scaler.update()
        watch.close()
    for stats in aggregator.stats(4):
        names |= set(stats.columns)
        names |= set(stats.scalars)
        names |= set(stats.labels)
    known = {*(column.name for column in STATISTIC_COLUMNS), *Scalar, *Label}
    assert names == known - {Label.CARRIED}  # which a bug alone brings


def test_a_slower_path_is_told_once_with_its_cause(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing falls back silently (row B6); the record names the path."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("no rows today")

    monkeypatch.setattr("gradwatch._statistics.statistics.row_statistics", broken)
    watch = aggregator.attach(with_gradients())
    watch.collect()
    watch.collect()

    assert {stats.labels["path"] for stats in aggregator.stats(2)} == {"public"}
    told = [record.message for record in caplog.records if "no rows today" in record.message]
    assert len(told) == 1


def test_columns_are_narrower_only_while_a_slower_path_runs(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failure that passes, as of memory, took `nans` and `infs` from all later records."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    model = with_gradients()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    watch = aggregator.attach(model)
    with monkeypatch.context() as patch:
        patch.setattr("gradwatch._statistics.statistics.row_statistics", broken)
        watch.collect()
    watch.collect()
    watch.collect()

    assert [set(stats.columns) for stats in aggregator.stats(3)] == [
        {"l2", "nans", "infs"},
        {"l2"},
        {"l2", "nans", "infs"},
    ]


def test_the_kernels_are_loaded_when_a_model_is_attached(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[torch.device, set[torch.dtype]]] = []

    def warm_up(device: torch.device, dtypes: set[torch.dtype]) -> str:
        asked.append((device, dtypes))
        return "no compiler"

    monkeypatch.setattr("gradwatch._recording.sampler.warm_up", warm_up)
    monkeypatch.setattr(nn.Parameter, "is_cuda", True, raising=False)
    aggregator.attach(nn.ParameterList([torch.ones(2), torch.ones(2).double()]))

    assert asked == [(torch.device("cpu"), {torch.float32, torch.float64})]
    assert any("no compiler" in line for line in caplog.messages)


@pytest.mark.slow
def test_a_partial_gradient_is_left_out(aggregator: Sink, one_process: None) -> None:
    from torch.distributed.tensor import Partial, Replicate

    whole, partial = nn.Parameter(placed(Replicate())), nn.Parameter(placed(Replicate()))
    watch = aggregator.attach(nn.ParameterDict({"whole": whole, "partial": partial}))
    whole.grad, partial.grad = placed(Replicate()), placed(Partial())
    stats = aggregator.collected(watch)

    assert isinstance(stats, Stats)
    assert aggregator.layers(stats) == {"whole": pytest.approx(2.0**0.5)}
    assert watch.stats()["last_error"] == "partial: partial is left out: not reduced yet"


@pytest.mark.slow
def test_a_sharded_gradient_is_that_of_the_whole_layer(aggregator: Sink, one_process: None) -> None:
    """The manifest counts the elements of the whole."""
    from torch.distributed.tensor import Shard

    parameter = nn.Parameter(placed(Shard(0)))
    watch = aggregator.attach(nn.ParameterDict({"w": parameter}))
    parameter.grad = placed(Shard(0))
    watch.collect()
    aggregator.stats(1)
    (manifest,) = aggregator.of(Manifest)

    assert manifest.numel.unpack() == [2]
