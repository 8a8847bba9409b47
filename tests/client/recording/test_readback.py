"""From the device to the host: late, in any order, without room; the sender calls no torch."""

from __future__ import annotations

import contextlib
import gc
import math
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from gradwatch._faults import Faults
from gradwatch._pending.numbers import NumbersAtHand
from gradwatch._pending.ring import ABSENT
from gradwatch._recording import readback
from gradwatch._recording.readback import Readback
from gradwatch._transport.sender import Sender
from gradwatch_wire import Gains, Stats
from gradwatch_wire.columns import MEASURED_COLUMNS
from tests.support.late_memory import LateMemory, take_as_far
from tests.support.recording import Sink
from tests.support.waiting import wait_until


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LateMemory]]:
    made = take_as_far(monkeypatch)
    yield made
    for memory in made:
        memory.deliver()


def with_gradient(value: float) -> nn.Linear:
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    return model


def norm(stats: Stats) -> float:
    return stats.columns["l2"].unpack()[1]


@pytest.mark.slow
def test_what_arrives_late_is_sent_as_it_was_measured(
    aggregator: Sink, device: list[LateMemory]
) -> None:
    """The device writes, element by element, while the sender looks."""
    model = with_gradient(1.0)
    watch = aggregator.attach(model, columns=MEASURED_COLUMNS)
    stop = threading.Event()

    def deliver() -> None:
        while not stop.is_set():
            for memory in device:
                memory.deliver(1)

    writer = threading.Thread(target=deliver)
    writer.start()
    try:
        for step in range(300):
            assert model.bias.grad is not None
            model.bias.grad.fill_(math.nan if step % 7 == 0 else float(step))
            watch.collect(loss=torch.tensor(0.5 * step))
        sent = aggregator.stats(300)
    finally:
        stop.set()
        writer.join()

    assert [stats.scalars["loss"] for stats in sent] == [0.5 * step for step in range(300)]
    expected = [math.nan if step % 7 == 0 else step * math.sqrt(2.0) for step in range(300)]
    assert list(map(norm, sent)) == pytest.approx(expected, nan_ok=True)
    assert watch.stats()["dropped"] == 0


def test_without_room_a_collection_is_dropped_counted_and_declared_lost(
    aggregator: Sink, device: list[LateMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is bounded in bytes, and nothing waits; manifests are sent in any case."""
    monkeypatch.setattr(readback, "RING_BYTES", 0)
    model = with_gradient(1.0)
    watch = aggregator.attach(model)
    for _ in range(20):
        watch.collect()
    (memory,) = device
    room = len(memory.copies)
    assert 0 < room < 20
    assert watch.stats()["dropped"] == 20 - room
    memory.deliver()
    assert [stats.step for stats in aggregator.stats(room)] == list(range(room))
    watch.collect()
    memory.deliver()
    wait_until(lambda: len(aggregator.of(Stats)) == room + 1, "the next one")

    assert aggregator.stats(room + 1)[-1].step == 20
    # The manifest is the first, what was lost comes after what had room.
    assert aggregator.lost == [(room + 2, 21)]
    assert str(watch.stats()["last_error"]).startswith("dropped")


@pytest.mark.slow
def test_at_the_end_nobody_waits_for_what_has_not_arrived(
    aggregator: Sink, device: list[LateMemory]
) -> None:
    """The ring goes to the next watch, and what comes late falls on nobody's numbers."""
    watch = aggregator.attach(with_gradient(1.0))
    watch.collect()
    watch.close()
    assert watch.stats()["dropped"] == 1
    second = aggregator.attach(with_gradient(3.0), run="second")
    second.collect()
    (memory,) = device
    memory.deliver()
    (stats,) = aggregator.stats(1)

    assert norm(stats) == pytest.approx(3.0 * math.sqrt(2.0))


def test_memory_does_not_grow_from_watch_to_watch(
    aggregator: Sink, device: list[LateMemory]
) -> None:
    for number in range(5):
        watch = aggregator.attach(with_gradient(1.0), run=f"run-{number}")
        watch.collect()
        device[0].deliver()
        watch.close()

    assert len(device) == len(readback._idle) == 1


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_ring_has_room_for_several_of_the_largest_records(device: list[LateMemory]) -> None:
    ours = Readback(Faults())
    for size in (10, 10_000, 1_000_000):
        values = [torch.ones(size, dtype=torch.float64)]
        assert [ours.start(values).is_lost for _ in range(readback.MIN_RECORDS)] == [False] * 4
    assert len(device) == 2


def test_no_number_looks_like_one_that_has_not_arrived(device: list[LateMemory]) -> None:
    odd = torch.tensor([ABSENT, ABSENT - (1 << 63), 0x7FF0000000000001]).view(torch.float64)
    values = Readback(Faults()).start([odd, torch.tensor([math.inf, -math.inf, -0.0, 5e-324])])
    assert not values.ready()
    device[0].deliver()
    assert values.ready()
    first, second = values.read()
    assert list(map(math.isnan, first)) == [True] * 3
    assert list(map(str, second)) == ["inf", "-inf", "-0.0", "0.0"]  # float32 has no 5e-324


def test_the_memory_is_the_host_s_whatever_the_default_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under `torch.set_default_device("cuda")` torch would refuse to pin."""
    asked: dict[str, Any] = {}

    def empty(size: int, **settings: Any) -> LateMemory:
        asked.update(settings)
        return LateMemory(size)

    monkeypatch.setattr(torch, "empty", empty)
    readback.PinnedRing(4)
    assert asked == {"dtype": torch.float64, "device": "cpu", "pin_memory": True}


def test_nothing_is_copied_inside_a_graph_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    faults = Faults()
    captured: Any = types.SimpleNamespace(device=torch.device("cuda"), numel=lambda: 1)

    assert Readback(faults).start([captured]).is_lost


def train(model: nn.Module, watch: Any, scaler: GradScaler, optimizer: Any) -> None:
    for factor in (1.0, math.nan, 2.0, 3.0):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), factor)).square().mean()
        scaler.scale(loss).backward()
        watch.collect(loss=loss)
        scaler.step(optimizer)
        scaler.update()


def attached(attach: Any, **settings: Any) -> tuple[nn.Module, Any, GradScaler, Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=64.0)
    watch = attach(
        model, optimizer, scaler=scaler, local=True, activations=True, blocks=model, **settings
    )
    return model, watch, scaler, optimizer


def test_the_background_thread_never_calls_torch(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call into torch could be one into a driver, on a device that is not this rank's."""
    calls: set[str] = set()

    def look(frame: Any, event: str, what: Any) -> None:
        if event == "call":
            name = frame.f_globals.get("__name__") or ""
        elif event == "c_call":
            owner = type(getattr(what, "__self__", None))
            name = getattr(what, "__module__", None) or owner.__module__
        else:
            return
        if name.split(".")[0] == "torch":
            calls.add(f"{name}: {frame.f_code.co_name}")

    gc.collect()  # else what other tests have left may be let go in the background thread
    threading.setprofile(look)  # of threads that begin from here on
    try:
        model, watch, scaler, optimizer = attached(aggregator.attach, report_every=2)
    finally:
        threading.setprofile(None)
    train(model, watch, scaler, optimizer)
    aggregator.stats(2)
    watch.close()

    assert len(aggregator.of(Gains)) == 3
    assert calls == set()


def test_what_is_handed_to_the_background_thread_holds_nothing_of_torch(
    aggregator: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: set[str] = set()
    handed = 0
    put = Sender.put

    def look(self: Any, collected: Any) -> None:
        nonlocal handed
        handed += 1
        found.update(type(each).__name__ for each in reachable(collected))
        put(self, collected)

    monkeypatch.setattr(Sender, "put", look)
    for report_every in (1, 2):
        train(*(made := attached(aggregator.attach, report_every=report_every))[:2], *made[2:])

    assert handed >= 6
    assert found.isdisjoint({"Tensor", "Parameter", "device", "Stream", "Event", "dtype"})


def reachable(root: object) -> list[object]:
    left, seen = [root], {}
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, (type, types.FunctionType, types.ModuleType)):
            continue
        seen[id(each)] = each
        left += gc.get_referents(each)
    return list(seen.values())


def test_numbers_of_the_cpu_are_there_at_once() -> None:
    ours = Readback(Faults())
    values = ours.start([torch.ones(3), torch.tensor(2)])
    assert isinstance(values.sources[0][1], NumbersAtHand)
    assert values.read() == [[1.0, 1.0, 1.0], [2.0]]
    assert ours._ring is None
