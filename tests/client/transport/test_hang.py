"""Stacks of hangs: sent once for each, and not while steps come."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from gradwatch._transport.hang import HANG_S, MAX_FRAMES, HangWatch, read_stack
from gradwatch_wire import Event
from gradwatch_wire.limits import MAX_STACK_BYTES
from tests.support.recording import Sink


class Training:
    """Steps of a training on a clock of its own."""

    def __init__(self) -> None:
        self.step: int | None = 0
        self.now_s = 100.0
        self.hang = HangWatch(lambda: self.step, self.now_s)
        self.events: list[Event] = []

    def wait(self, seconds: float) -> None:
        """Let time go by, a second or less at a time."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(self.now_s + 1.0, until_s)
            event = self.hang.look(threading.get_ident(), self.now_s)
            self.events += [event] if event else []

    def train(self, steps: int, each_s: float) -> None:
        for _ in range(steps):
            self.wait(each_s)
            assert self.step is not None
            self.step += 1
            self.wait(0.0)
        self.hang.look(threading.get_ident(), self.now_s)


def test_a_hang_is_told_once() -> None:
    training = Training()
    training.train(20, 0.5)
    training.wait(HANG_S - 1.0)
    assert training.events == []
    training.wait(1000.0)

    (event,) = training.events
    assert (event.name, event.step) == ("stack", 20)
    first, *others = event.text.split("\n")
    assert first.startswith("read_stack ")
    assert any(line.startswith("test_a_hang_is_told_once ") for line in others)

    training.train(20, 0.5)
    training.wait(1000.0)
    assert [event.step for event in training.events] == [20, 40]


@pytest.mark.parametrize(("each_s", "pause_s"), [(0.1, 28.0), (10.0, 99.0), (3600.0, 30_000.0)])
def test_a_pause_of_a_few_steps_is_none(each_s: float, pause_s: float) -> None:
    training = Training()
    training.train(20, each_s)
    training.wait(pause_s)

    assert training.events == []


def test_what_a_step_takes_has_to_be_known() -> None:
    training = Training()
    training.train(3, 0.1)
    training.wait(1000.0)
    training.train(20, 0.1)
    training.step = None  # the watch is gone
    training.wait(1000.0)

    assert training.events == []


def test_many_steps_between_two_looks_are_counted() -> None:
    """A look comes some times in a second, and a step may take microseconds."""
    training = Training()
    for _ in range(10):
        assert training.step is not None
        training.step += 1000
        training.wait(1.0)
    training.wait(HANG_S + 2.0)

    assert len(training.events) == 1


def test_the_stack_is_that_of_the_thread_that_trains(aggregator: Sink) -> None:
    model = nn.Linear(2, 1)
    watch, optimizer = aggregator.attach_sgd(model, every=1)
    end = threading.Event()

    def train_elsewhere() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        end.wait()

    thread = threading.Thread(target=train_elsewhere)
    thread.start()
    aggregator.stats(1)
    try:
        assert " train_elsewhere " in f" {read_stack(watch._sender._trainer)}".replace("\n", " ")
    finally:
        end.set()
        thread.join()


def test_a_stack_is_short_and_has_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path(__file__).parents[2]))

    def dive(depth: int) -> str:
        return dive(depth - 1) if depth else read_stack(threading.get_ident())

    stack = dive(100)

    assert len(stack.split("\n")) == MAX_FRAMES
    assert len(stack.encode()) <= MAX_STACK_BYTES
    assert " client/transport/test_hang.py:" in stack
    assert read_stack(0) == ""
