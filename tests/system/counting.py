"""Numbers of calls that a training step and a stored record cost.

A count does not depend on the machine's speed, so a test can compare it with the one written down:

    .venv/bin/python -m tests.system.counting --write    # after a change that is meant to cost more
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import torch

import gradwatch
from gradwatch_server.engine.engine import Engine
from tests.support.engine import RunningEngine
from tests.support.peer import Peer
from tests.support.ports import ReservedPort
from tests.support.programs import program

WRITTEN_DOWN: Final = Path(__file__).with_name("counts.json")

WARM_UP: Final = 50
"""Steps or records before those that are counted."""

COUNTED: Final = 200

IDLE_S: Final = 0.1

BEGIN: Final = "/gradwatch-counts-from-here"
END: Final = "/gradwatch-counts-to-here"
"""Files that are not there: a look for each shows in the list of system calls."""

WAITING: Final = "epoll_wait,futex,poll,getpid,clock_nanosleep"
"""System calls that wait, or that ZeroMQ adds to each wait: their number depends on speed."""


class CallCounter:
    """Number of calls of Python and C functions in the threads that the counter is set on."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, _frame: FrameType, event: str, _argument: object) -> None:
        """Count an event of `sys.setprofile`."""
        if event in {"call", "c_call"}:
            self.num_calls += 1


class RoundCounter(CallCounter):
    """Numbers of calls of the engine's rounds, each with those of the loop around it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Count an event of `sys.setprofile`."""
        if event == "call" and frame.f_code is Engine._round.__code__:
            self.counts.append(self.num_calls)
            self.num_calls = 0
        super().__call__(frame, event, argument)


@contextmanager
def training(*, is_watched: bool) -> Iterator[Callable[[], None]]:
    """Yield a training step of a small model, whose records nobody takes."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(2, 8)
    with closing(ReservedPort()) as port:
        watch = gradwatch.attach(model, optimizer, endpoint=port.endpoint) if is_watched else None

        def step() -> None:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            if watch is not None:
                watch.annotate(loss=loss)
            optimizer.step()

        yield step
        if watch is not None:
            watch.close()


@contextmanager
def storing() -> Iterator[Callable[[], None]]:
    """Yield a function that sends a record to an engine and waits until it is acknowledged."""
    with tempfile.TemporaryDirectory() as directory:
        engine = RunningEngine(Path(directory) / "data", "tcp://127.0.0.1:0", {})
        peer = Peer(engine.endpoint).attach([f"layer{index}" for index in range(8)])

        def store() -> None:
            peer.stats(peer.seq, [1.0] * 8)
            peer.acked()

        yield store
        peer.close()
        engine.close()


def calls_per_step(*, is_watched: bool) -> float:
    """Return the median number of calls in the training thread."""
    counter = CallCounter()
    counts = []
    with training(is_watched=is_watched) as step:
        for _ in range(WARM_UP):
            step()
        for _ in range(COUNTED):
            counter.num_calls = 0
            sys.setprofile(counter)
            step()
            sys.setprofile(None)
            counts.append(counter.num_calls)
    return statistics.median(counts)


def calls_per_record() -> float:
    """Return the median number of calls of the engine's round that stores one record."""
    counter = RoundCounter()
    threading.setprofile(counter)
    with storing() as store:
        threading.setprofile(None)
        for _ in range(WARM_UP):
            store()
        counter.counts.clear()
        for _ in range(COUNTED):
            store()
    return statistics.median(counter.counts)


def calls_per_idle_round() -> float:
    """Return the median number of calls of a round of an engine that nobody sends to."""
    counter = RoundCounter()
    threading.setprofile(counter)
    with storing():
        threading.setprofile(None)
        while len(counter.counts) < WARM_UP:
            time.sleep(IDLE_S)
    return statistics.median(counter.counts)


def system_calls(what: str, *options: str) -> float:
    """Return the number of system calls for one step or record, those that wait left out."""
    with tempfile.NamedTemporaryFile("r") as log:
        strace = [program("strace", "strace"), *options, "-o", log.name]
        command = [sys.executable, "-m", "tests.system.counting", what]
        subprocess.run([*strace, f"--trace=!{WAITING}", *command], check=True)
        _, between, after = re.split(f".*(?:{BEGIN}|{END}).*\n", log.read())
    assert after
    # The end of a call that another thread's interrupted, signals and ends of threads are none.
    calls = [line for line in between.splitlines() if not re.search(r"resumed>|---|\+\+\+", line)]
    return round(len(calls) / COUNTED, 2)


COUNTS: Final[dict[str, Callable[[], float]]] = {
    "calls per step": lambda: calls_per_step(is_watched=True) - calls_per_step(is_watched=False),
    "calls per record": calls_per_record,
    "calls per idle round": calls_per_idle_round,
    "system calls per step": lambda: system_calls("step"),
    "system calls per record": lambda: system_calls("record", "--follow-forks"),
}
"""Each count of the table, and the function that takes it."""


def main() -> None:
    """Do steps or records, or print all counts, or write them down."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["step"], ["record"]):
        with training(is_watched=True) if arguments[0] == "step" else storing() as once:
            for _ in range(WARM_UP):
                once()
            Path(BEGIN).exists()
            for _ in range(COUNTED):
                once()
            Path(END).exists()
        return
    text = json.dumps({name: count() for name, count in COUNTS.items()}, indent=2) + "\n"
    if arguments == ["--write"]:
        WRITTEN_DOWN.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
