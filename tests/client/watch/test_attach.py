"""`attach`: one clear error for a wrong argument, and otherwise a watch that says who it is."""

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
from gradwatch._watch.attach import MIN_BUFFER_BYTES
from gradwatch_wire import Manifest, Stats

MODEL = nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
COMPUTED = nn.Linear(2, 2)  # as MAML leaves a model: the weight is a step away from the parameter
COMPUTED._parameters["weight"] = COMPUTED.weight * 0.9  # type: ignore[assignment]


class Imitation(torch.optim.Optimizer):
    """A wrapper that never ran `Optimizer.__init__`, and wraps nothing that it shows."""

    def __init__(self) -> None:
        self.param_groups = OPTIMIZER.param_groups


STRANGER = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"model": None}, TypeError, "model: a torch.nn.Module or a dict .* got NoneType"),
        ({"model": nn.ReLU()}, ValueError, "model: none of its 0 watched parameters requires"),
        ({"optimizer": "adam"}, TypeError, "optimizer: a torch.optim.Optimizer or a list .* str"),
        ({"optimizer": [OPTIMIZER, None]}, TypeError, "optimizer: .* got NoneType"),
        ({"optimizer": {OPTIMIZER}}, TypeError, "optimizer: .* got set"),
        ({"optimizer": [OPTIMIZER, OPTIMIZER]}, ValueError, "optimizer: one .* given twice"),
        (
            {"optimizer": STRANGER},
            *(ValueError, "optimizer: none of the 2 parameters of the optimizer is a watched"),
        ),
        (
            {"optimizer": (OPTIMIZER, STRANGER)},
            *(ValueError, "optimizer: none of the 2 parameters of the optimizer 1 is a watched"),
        ),
        ({"optimizer": [OPTIMIZER] * 65}, ValueError, "optimizer: at most 64, got 65; attach with"),
        (
            {"optimizer": Imitation()},
            *(TypeError, r"optimizer: Imitation is not a complete torch.optim.Optimizer \(its __i"),
        ),
        ({"model": COMPUTED}, ValueError, "model: weight is no parameter of its own but computed"),
        ({"run": 5}, TypeError, "run: a string, got int"),
        ({"run": "a b"}, ValueError, "run: 'a b' is not a run name; allowed are 1 to 128"),
        ({"endpoint": 5}, TypeError, "endpoint: a string, got int"),
        ({"endpoint": "localhost:5555"}, ValueError, "endpoint: 'localhost:5555' is not like tcp:"),
        ({"every": 0}, ValueError, "every: at least 1, got 0"),
        ({"every": -3}, ValueError, "every: at least 1, got -3"),
        ({"every": 1.0}, TypeError, "every: a whole number, got 1.0"),
        ({"every": True}, TypeError, "every: a whole number, got True"),
        ({"groups": ["a"]}, TypeError, "groups: a dict of names to patterns or parameters"),
        ({"groups": {"a": "x.*"}}, ValueError, "groups: 'a': pattern 'x.\\*' matches none of 2"),
        ({"include": "x.*"}, ValueError, "include: pattern 'x.\\*' matches none of 2 names"),
        ({"include": 5}, TypeError, "include: one item or a list of them, got int"),
        ({"exclude": ["x.*"]}, ValueError, "exclude: pattern 'x.\\*' matches none of 2 names"),
        ({"exclude": "*"}, ValueError, "include, exclude: they leave none of the model's 2"),
        ({"scaler": 65536.0}, TypeError, "scaler: a torch.amp.GradScaler, got float"),
        ({"blocks": [MODEL]}, ValueError, "blocks: 2 to 4096 modules, got 1"),
        ({"blocks": 3}, TypeError, "blocks: a list of modules, got int"),
        ({"blocks": [MODEL, "h.1"]}, TypeError, "blocks: modules, got str"),
        ({"blocks": [MODEL, MODEL]}, ValueError, "blocks: one module is in the list twice"),
        ({"columns": ["l3"]}, ValueError, "columns: some of l2, l1, linf, .*, got 'l3'"),
        ({"report_every": 0}, ValueError, "report_every: at least 1, got 0"),
        ({"on_alert": "print"}, TypeError, "on_alert: a function of one alert, got str"),
        ({"buffer_bytes": 1000}, ValueError, f"buffer_bytes: at least {MIN_BUFFER_BYTES}, got 1"),
        ({"buffer_bytes": 1e6}, TypeError, "buffer_bytes: a whole number, got 1000000.0"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_clear_error_and_leaves_nothing_behind(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    """It names the argument, what was given and what is allowed; no thread, no hook is left."""
    threads = threading.active_count()
    settings: dict[str, Any] = {"model": MODEL, "optimizer": OPTIMIZER, "run": "test"} | wrong

    with pytest.raises(error, match="^" + message) as caught:
        gradwatch.attach(**settings)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert threading.active_count() == threads
    assert not any(parameter._post_accumulate_grad_hooks for parameter in MODEL.parameters())
    assert not any(parameter._backward_hooks for parameter in MODEL.parameters())
    assert not OPTIMIZER._optimizer_step_pre_hooks
    assert not OPTIMIZER._optimizer_step_pre_hooks
    assert not MODEL.weight._post_accumulate_grad_hooks


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank: RANK='2' WORLD_SIZE='2' in the environment"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "run: a name is needed, the same on all 2 ranks"),
        ({"GRADWATCH_RUN": "a/b"}, "run: 'a/b' is not a run name"),
        ({"GRADWATCH_ENDPOINT": "a/b"}, "endpoint: 'a/b' is not like tcp://"),
    ],
)
def test_an_environment_that_does_not_fit_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    """Settings and launchers are checked like arguments."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ValueError, match="^" + message):
        gradwatch.attach(MODEL)


def test_the_aggregator_hears_who_attached(
    aggregator: Any, attach: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run, place in the job, host, process and versions."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "j" * 600)
    attach(nn.Linear(2, 2), run="gpt2-small")
    wait_until(lambda: aggregator.hellos, "HELLO")
    (hello,) = aggregator.hellos.values()

    assert (hello.run, hello.rank, hello.world) == ("gpt2-small", 3, 4)
    assert (hello.host, hello.pid) == (socket.gethostname(), os.getpid())
    assert hello.job == "j" * 512  # what the wire takes of it
    assert hello.versions == {
        "gradwatch": gradwatch.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "protocol_minor": "0",
    }


def test_settings_come_from_the_environment(
    aggregator: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a script needs no change to go elsewhere."""
    monkeypatch.setenv("GRADWATCH_RUN", "from-the-environment")
    monkeypatch.setenv("GRADWATCH_ENDPOINT", aggregator.endpoint)
    with gradwatch.attach(nn.Linear(2, 2)):
        wait_until(lambda: aggregator.hellos, "HELLO")

    assert [hello.run for hello in aggregator.hellos.values()] == ["from-the-environment"]


def test_two_watches_have_sessions_of_their_own(
    aggregator: Any, attach: Any, wait_until: Any
) -> None:
    """A restart in the same process must not be taken for the same session."""
    attach(nn.Linear(2, 2))
    attach(nn.Linear(2, 2))
    wait_until(lambda: len(aggregator.hellos) == 2, "two HELLOs")


def stats_of(model: nn.Module, attach: Any, aggregator: Any) -> Stats:
    """What one collection of a model with gradients says."""
    model(torch.ones(1, 2)).sum().backward()
    attach(model).collect()
    stats: Stats = aggregator.stats(1)[0]
    return stats


@pytest.mark.parametrize(("world", "reduction"), [(1, "none"), (2, "unknown")])
def test_numbers_of_a_plain_model_say_whether_they_were_reduced(
    aggregator: Any, attach: Any, monkeypatch: pytest.MonkeyPatch, world: int, reduction: str
) -> None:
    """Not in a single process; in several it is not known what reduces them."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world))
    stats = stats_of(nn.Linear(2, 2), attach, aggregator)

    assert stats.labels["reduction"] == reduction


def test_numbers_under_ddp_say_that_they_are_means(
    aggregator: Any, attach: Any, one_process: None
) -> None:
    """Wherever in the model DDP is."""
    model = nn.Sequential(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)))

    assert stats_of(model, attach, aggregator).labels["reduction"] == "mean"


@pytest.mark.parametrize(("world", "probed"), [(1, False), (2, True)])
def test_local_gradients_are_probed_where_there_are_other_ranks(
    aggregator: Any, attach: Any, monkeypatch: pytest.MonkeyPatch, world: int, probed: bool
) -> None:
    """Alone, the gradients themselves tell."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world))
    model = nn.Linear(2, 2)
    watch = attach(model)
    model(torch.ones(1, 2)).sum().backward()
    watch.collect()

    assert ("local_probe" in aggregator.stats(1)[0].scalars) is probed


def test_disabled_it_returns_a_watch_that_does_nothing(
    aggregator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the interface of a watch, takes anything, and starts nothing."""
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


def test_the_watch_that_does_nothing_has_the_interface_of_one_that_does(attach: Any) -> None:
    """Names, parameters and the keys of the counters."""
    real, null = attach(nn.Linear(2, 2)), gradwatch.NullWatch()

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


def test_the_optimizer_may_be_left_out_or_be_an_empty_list(aggregator: Any, attach: Any) -> None:
    """Then only `collect` collects."""
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    left_out: tuple[Any, ...] = (None, [], ())
    for number, none in enumerate(left_out, start=1):
        attach(model, none).collect()
        aggregator.stats(number)

    assert {stats.scalars.get("lr") for stats in aggregator.of(Stats)} == {None}
    assert len(aggregator.of(Manifest)) == 3


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
def test_the_first_fsdp_is_refused(one_process: None) -> None:
    """A flat shard's norm would pass for that of a layer."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(torch.nn.Linear(4, 2), device_id=torch.device("cpu"))

    with pytest.raises(ValueError, match=r"^model: FullyShardedDataParallel .* use .*fully_shard$"):
        gradwatch.attach(model, run="test")


def test_an_attach_that_fails_late_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when the thread cannot be started."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    start = threading.Thread.start

    def no_more(thread: threading.Thread) -> None:
        if thread.name == "gradwatch-sender":
            msg = "can't start new thread"
            raise RuntimeError(msg)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_more)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="^threads: the background thread cannot be started: can"):
        gradwatch.attach(model, optimizer, run="test", local=True, blocks=[model, nn.ReLU()])

    assert sorted(os.listdir("/proc/self/fd")) == before
    assert not model._forward_hooks
    assert not any(p._post_accumulate_grad_hooks or p._backward_hooks for p in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: an Optimizer by type, with the one that does the work inside."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)


def test_a_wrapped_optimizer_is_unwrapped(aggregator: Any, attach: Any) -> None:
    """Its steps are those of the one inside."""
    model = nn.Linear(2, 2)
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    attach(model, optimizer)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    assert [stats.step for stats in aggregator.stats(2)] == [0, 1]


def test_the_first_step_may_be_given(aggregator: Any, attach: Any) -> None:
    """As a run that resumes counts on."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer, first_step=500)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    assert [stats.step for stats in aggregator.stats(2)] == [500, 501]
