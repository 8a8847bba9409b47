"""What only a GPU can show: the kernel compiled, no synchronisation, the read-back by the ring."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import MEASURED_COLUMNS
from tests.support.recording import Sink
from tests.support.waits import refusing_waits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def never_waiting() -> Iterator[None]:
    with refusing_waits():
        yield


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("fill", [1.0, 60000.0, 1e-7, 0.0, math.nan, math.inf])
def test_the_compiled_kernel_agrees_with_the_cpu(dtype: torch.dtype, fill: float) -> None:
    square = torch.randn(700, 700).to(dtype)
    made = [square, square.T, square[::3], square.view(-1)[1:], torch.full((5000,), fill)]
    made = [gradient.to(dtype) for gradient in made] + [torch.empty(0, dtype=dtype)]
    on_gpu = statistics([gradient.cuda() for gradient in made], MEASURED_COLUMNS)
    expected = statistics(made, MEASURED_COLUMNS).values

    assert (on_gpu.path, on_gpu.declined) == ("triton", "")
    for name, values in on_gpu.values.items():
        assert values.tolist() == pytest.approx(expected[name].tolist(), rel=1e-5, nan_ok=True)


def test_collecting_never_waits_for_the_device(aggregator: Sink, never_waiting: None) -> None:
    """A training loop with clipping collected before and after (row B1)."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    watch = aggregator.attach(model, optimizer, report_every=2)
    batch = torch.ones(8, 64, device="cuda")
    for step in range(10):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        if step % 2:
            watch.collect(loss=loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    sent = aggregator.stats(5)

    assert {stats.labels["path"] for stats in sent} == {"triton"}
    assert watch.stats()["faults"] == 0


def test_nothing_is_compiled_after_attach(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1).bfloat16()).cuda()
    watch = aggregator.attach(model)
    compiled = pytest.importorskip("triton.compiler.compiler")

    def compile_again(*_: Any, **__: Any) -> None:
        pytest.fail("compiled in the loop")

    monkeypatch.setattr(compiled, "compile", compile_again)
    monkeypatch.setattr("triton.runtime.jit.compile", compile_again, raising=False)
    for number in range(4):
        for parameter in list(model.parameters())[number:]:
            parameter.grad = torch.ones_like(parameter)
        watch.collect()
        model.zero_grad()

    assert watch.stats()["faults"] == 0


def test_around_a_captured_step_all_is_collected(aggregator: Sink) -> None:
    """Inside the capture nothing is, and one line says so."""
    model = nn.Linear(64, 1).cuda()
    watch = aggregator.attach(model)
    batch = torch.ones(8, 64, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(batch).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(batch).square().mean().backward()
        watch.collect()
    assert watch.stats()["collected"] == 0
    for _ in range(3):
        graph.replay()
        watch.collect()

    assert len(aggregator.stats(3)) == 3


@pytest.mark.usefixtures("rank_0_of_2")
@pytest.mark.parametrize("settings", [{"local": True}, {"blocks": None}, {"activations": True}, {}])
def test_hooks_inside_a_capture_leave_it_whole(aggregator: Sink, settings: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    batch = torch.ones(8, 64, device="cuda")
    if "blocks" in settings:
        settings = {"blocks": [model[0], model[2]]}
    watch = aggregator.attach(model, **settings)

    def step() -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        model(batch).square().mean().backward()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
        watch.collect()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        step()
    for _ in range(3):
        batch.mul_(1.5)
        graph.replay()
        watch.collect()
    step()
    watch.collect()
    eager, *replayed, last = aggregator.stats(5)
    norms = [aggregator.layers(stats)["2.bias"] for stats in replayed]

    assert watch.stats()["faults"] == 0
    assert aggregator.layers(last) == pytest.approx(aggregator.layers(replayed[-1]), rel=1e-4)
    assert aggregator.layers(eager) != pytest.approx(aggregator.layers(replayed[0]), rel=1e-4)
    assert len(set(norms)) == 3


def test_a_capture_while_numbers_are_on_their_way_is_not_broken(aggregator: Sink) -> None:
    """In the capture mode `global` a call of any thread into the driver would end it."""
    model = nn.Linear(64, 1).cuda()
    batch = torch.ones(8, 64, device="cuda")
    model(batch).square().mean().backward()
    watch = aggregator.attach(model)
    watch.collect()
    aggregator.stats(1)
    for _ in range(20):
        torch.cuda._sleep(10_000_000)  # cycles: the numbers are still to come
        watch.collect()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        result = batch * 2.0
        time.sleep(0.1)  # several rounds of the background thread
    graph.replay()

    assert len(aggregator.stats(21)) == 21
    assert result.sum().item() == 2.0 * batch.numel()
    assert watch.stats()["faults"] == 0
