"""`attach`: a watch that says who it is."""

from __future__ import annotations

import inspect
import os
import platform
import socket
import threading
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch_wire import Manifest, Stats
from tests.support.recording import Sink
from tests.support.waiting import wait_until


def test_the_aggregator_hears_who_attached(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run, place in the job, host, process and versions."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "j" * 600)
    aggregator.attach(nn.Linear(2, 2), run="gpt2-small")
    wait_until(lambda: aggregator.hellos, "HELLO")
    (hello,) = aggregator.hellos.values()

    assert (hello.run, hello.rank, hello.world) == ("gpt2-small", 3, 4)
    assert (hello.host, hello.pid) == (socket.gethostname(), os.getpid())
    assert hello.job == "j" * 512  # what the wire takes of it
    assert hello.versions == {
        "gradwatch": gradwatch.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "protocol_minor": "1",
    }


def test_settings_come_from_the_environment(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWATCH_RUN", "from-the-environment")
    monkeypatch.setenv("GRADWATCH_ENDPOINT", aggregator.endpoint)
    with gradwatch.attach(nn.Linear(2, 2)):
        wait_until(lambda: aggregator.hellos, "HELLO")

    assert [hello.run for hello in aggregator.hellos.values()] == ["from-the-environment"]


def test_two_watches_have_sessions_of_their_own(aggregator: Sink) -> None:
    """A restart in the same process must not be taken for the same session."""
    aggregator.attach(nn.Linear(2, 2))
    aggregator.attach(nn.Linear(2, 2))
    wait_until(lambda: len(aggregator.hellos) == 2, "two HELLOs")


def stats_of(model: nn.Module, attach: Any, aggregator: Any) -> Stats:
    model(torch.ones(1, 2)).sum().backward()
    attach(model).collect()
    stats: Stats = aggregator.stats(1)[0]
    return stats


@pytest.mark.parametrize(("world", "reduction"), [(1, "none"), (2, "unknown")])
def test_numbers_of_a_plain_model_say_whether_they_were_reduced(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch, world: int, reduction: str
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world))
    stats = stats_of(nn.Linear(2, 2), aggregator.attach, aggregator)

    assert stats.labels["reduction"] == reduction


@pytest.mark.slow
def test_numbers_under_ddp_say_that_they_are_means(aggregator: Sink, one_process: None) -> None:
    model = nn.Sequential(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)))

    assert stats_of(model, aggregator.attach, aggregator).labels["reduction"] == "mean"


@pytest.mark.parametrize(("world", "probed"), [(1, False), (2, True)])
def test_local_gradients_are_probed_where_there_are_other_ranks(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch, world: int, probed: bool
) -> None:
    """Alone, the gradients themselves tell."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world))
    model = nn.Linear(2, 2)
    watch = aggregator.attach(model)
    model(torch.ones(1, 2)).sum().backward()
    watch.collect()

    assert ("local_probe" in aggregator.stats(1)[0].scalars) is probed


def test_disabled_it_returns_a_watch_that_does_nothing(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWATCH_DISABLED", "1")
    threads = threading.active_count()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = gradwatch.attach(model, optimizer, endpoint=aggregator.endpoint)

    assert type(watch) is gradwatch.NullWatch
    with watch as entered:
        assert entered is watch
        model(torch.ones(1, 2)).sum().backward()
        watch.collect(loss=1.0, step=3, batch_size=2)
        optimizer.step()
    watch.close()
    watch.disable()
    assert threading.active_count() == threads
    assert not optimizer._optimizer_step_pre_hooks
    assert aggregator.hellos == {}


def test_the_watch_that_does_nothing_has_the_interface_of_one_that_does(aggregator: Sink) -> None:
    """Names, parameters and the keys of the counters."""
    real, null = aggregator.attach(nn.Linear(2, 2)), gradwatch.NullWatch()

    def public(kind: type) -> dict[str, list[str]]:
        functions = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(inspect.signature(function).parameters)
            for name, function in functions
            if not name.startswith("_")
        }

    assert public(gradwatch.Watch) == public(gradwatch.NullWatch)
    assert real.stats().keys() == null.stats().keys()
    assert {type(value) for value in null.stats().values()} == {int, str}


def test_the_optimizer_may_be_left_out_or_be_an_empty_list(aggregator: Sink) -> None:
    """Then only `collect` collects."""
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    left_out: tuple[Any, ...] = (None, [], ())
    for number, none in enumerate(left_out, start=1):
        aggregator.attach(model, none).collect()
        aggregator.stats(number)

    assert {stats.scalars.get("lr") for stats in aggregator.of(Stats)} == {None}
    assert len(aggregator.of(Manifest)) == 3


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: an Optimizer by type, with the one that does the work inside."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)


@pytest.mark.slow
def test_a_wrapped_optimizer_is_unwrapped(aggregator: Sink) -> None:
    model = nn.Linear(2, 2)
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    aggregator.attach(model, optimizer)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    assert [stats.step for stats in aggregator.stats(2)] == [0, 1]


@pytest.mark.slow
def test_the_first_step_may_be_given(aggregator: Sink) -> None:
    model = nn.Linear(2, 2)
    _, optimizer = aggregator.attach_sgd(model, first_step=500)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    assert [stats.step for stats in aggregator.stats(2)] == [500, 501]
