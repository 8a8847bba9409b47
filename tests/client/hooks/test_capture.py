"""CUDA graph captures: every hook is quiet inside one, and all is as before after it.

There is no device here to capture with: the question whether there is a capture is answered by the
test. What is captured computes nothing, so a captured backward pass leaves gradients of no meaning,
and a replay writes to them without raising their version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch import GradientGainMonitor
from gradwatch._statistics import capture
from gradwatch_wire import Gains
from gradwatch_wire.columns import UNKNOWN
from gradwatch_wire.names import Label, Point, Scalar
from tests.support.recording import Sink

pytestmark = pytest.mark.slow

Capturing = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Capturing:
    @contextlib.contextmanager
    def block() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_initialized", lambda: True)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            yield

    return block


class Chain(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])

    def forward(self, batch: Tensor) -> Tensor:
        for block in self.blocks:
            batch = block(batch)
        return batch


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    model.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    if optimizer is not None:
        optimizer.step()


def replay(model: nn.Module, factor: float) -> None:
    """Change the gradients as a replay does: behind autograd's back."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.data.fill_(factor)


def everything(attach: Any, monkeypatch: pytest.MonkeyPatch, *, local: bool) -> Any:
    """A watch with all its observers, and the model and the optimizer."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = attach(model, optimizer, local=local, blocks=model.blocks, activations=True)
    return watch, model, optimizer


def seen(watch: Any) -> list[int]:
    """How much each observer has noted since the last sample."""
    found = []
    for observer in watch._recorder.observed._observers:
        held = [getattr(observer, name, None) for name in ("_norms", "_sums", "_calls")]
        found += [len(each) for each in held if each is not None]
        if hasattr(observer, "_monitor"):
            found.append(len(observer._monitor._norms))
    return found


@pytest.mark.parametrize("local", [True, False])
def test_no_hook_does_anything_inside_a_capture(
    aggregator: Sink,
    monkeypatch: pytest.MonkeyPatch,
    capturing: Capturing,
    caplog: pytest.LogCaptureFixture,
    local: bool,
) -> None:
    """Local norms or probe, gains, activations, passes and steps; told in one line."""
    watch, model, optimizer = everything(aggregator.attach, monkeypatch, local=local)
    train(model, optimizer)
    model(torch.ones(1, 4)).sum().backward()
    assert len(seen(watch)) == 3
    optimizer.step()
    quiet = seen(watch)
    with capturing():
        for _ in range(3):
            train(model, optimizer)
            assert seen(watch) == quiet
            assert not watch._recorder.windows.is_open
    for _ in range(2):
        train(model, optimizer)
    watch.close()
    sent = aggregator.stats(4)

    assert [stats.step for stats in sent] == [0, 1, 2, 3]
    assert {stats.labels[Label.POINT] for stats in sent} == {Point.BACKWARD}
    assert all(Scalar.LOCAL_PROBE in stats.scalars for stats in sent)
    assert len(aggregator.of(Gains)) == 4
    assert caplog.text.count(capture.CAPTURED) == 1
    assert watch.stats()["faults"] == 0


def test_nothing_is_measured_while_a_stream_is_captured(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch, capturing: Capturing
) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
            self.calls: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls.append(str(func))
            return func(*args, **(kwargs or {}))

    plain = Chain()
    plain_optimizer = torch.optim.Adam(plain.parameters(), foreach=False)
    _, model, _ = everything(aggregator.attach, monkeypatch, local=True)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)  # takes the other's place
    calls = []
    for each in ((plain, plain_optimizer), (model, optimizer)):
        train(*each)
        with capturing(), Counting() as counting:
            each[0](torch.ones(1, 4)).sum().backward()
        calls.append(counting.calls)

    without, watched = calls
    assert [name for name in watched if "detach" not in name] == [
        name for name in without if "detach" not in name
    ]


def test_a_capture_between_a_pass_and_its_step_leaves_the_window_as_it_was(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch, capturing: Capturing
) -> None:
    watch, model, optimizer = everything(aggregator.attach, monkeypatch, local=False)
    train(model)
    with capturing():
        train(model, optimizer)
        watch.collect(loss=1.0)
        watch.annotate(loss=1.0)
    assert watch._recorder.windows.is_open
    optimizer.step()
    (stats,) = aggregator.stats(1)

    assert stats.step == 0
    assert stats.labels[Label.TAKEN] is True
    assert Scalar.LOSS not in stats.scalars
    assert watch.stats()["faults"] == 0


def test_a_step_outside_of_the_graph_measures_what_a_replay_has_left(
    aggregator: Sink, capturing: Capturing
) -> None:
    model = Chain()
    _, optimizer = aggregator.attach_sgd(model, lr=0.0, local=True)
    with capturing():
        train(model)
    for number in (1.0, 2.0):
        replay(model, number)
        optimizer.step()
    sent = aggregator.stats(2)

    assert {stats.labels[Label.POINT] for stats in sent} == {Point.OPTIMIZER_STEP}
    norms = [aggregator.layers(stats)["blocks.1.weight"] for stats in sent]
    assert norms == pytest.approx([4.0, 8.0])
    assert {*aggregator.layers(sent[1], "local_l2").values()} == {UNKNOWN}


def test_a_monitor_of_its_own_records_nothing_inside_a_capture(capturing: Capturing) -> None:
    model = Chain()
    with GradientGainMonitor(model.blocks) as monitor:
        with capturing():
            train(model)
            train(model)
        assert monitor.take() == [None, None]
        train(model)
        assert all(norm is not None for norm in monitor.norms())


def test_asking_makes_no_context_and_costs_nothing_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that has not touched CUDA is not asked further."""

    def fail() -> bool:
        raise AssertionError("the device was asked")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", fail)
    assert not capture.is_capturing()
