"""End of a watch that nobody closes: real processes that return, raise, exit and fork."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwatch_wire import Bye, Hello, Stats
from tests.support.recording import Sink

pytestmark = pytest.mark.slow

# What every script begins with. An optimizer would cost each process two seconds of imports.
BEGIN = """
import atexit, multiprocessing, os, sys, time
import torch
from torch import nn
import gradwatch

def attach(run="test"):
    model = nn.Linear(2, 2)
    return model, gradwatch.attach(model, run=run)

def train(model, watch, steps=3):
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        watch.collect()
"""

IN_MAIN = """
if __name__ == "__main__":
    model, watch = attach()
    train(model, watch)
"""

IN_CHILDREN = """
def work(end):
    model, watch = attach(run=end)
    train(model, watch)
    if end == "raises":
        raise ValueError("oops")
    if end == "exits":
        sys.exit(3)
    if end == "closes":
        watch.close()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=work, args=(end,)) for end in sys.argv[2:]]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print([child.exitcode for child in children])
"""

FORKS = """
def loop(steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        watch.collect()
        optimizer.step()

def child_does():
    loop(steps=5)
    watch.close()
    print(watch.stats()["collected"], flush=True)
    sys.exit(5)

if __name__ == "__main__":
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = gradwatch.attach(model, optimizer, run="test")
    loop()
    pid = os.fork()
    if pid == 0:
        child_does()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    child = multiprocessing.get_context("fork").Process(target=child_does)
    child.start()
    child.join()
    print(child.exitcode, flush=True)
    loop()
"""

ATTACHES_IN_FORK = """
if __name__ == "__main__":
    model, watch = attach(run="parent")
    train(model, watch)
    pid = os.fork()
    if pid == 0:
        watch = gradwatch.attach(model, run="child")
    else:
        os.waitpid(pid, 0)
    train(model, watch)
"""

DATA_LOADER = """
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.ones(2)

if __name__ == "__main__":
    model, watch = attach()
    workers = multiprocessing.get_context(sys.argv[1])
    loader = DataLoader(Numbers(), 2, num_workers=2, multiprocessing_context=workers)
    for batch in loader:
        model(batch).sum().backward()
        watch.collect()
"""


def steps(aggregator: Any, session: bytes | None = None) -> list[int]:
    return [
        envelope.record.step
        for envelope in aggregator.stored
        if isinstance(envelope.record, Stats) and session in (None, envelope.session)
    ]


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        ("", 0, "closed"),
        ("    raise ValueError('oops')", 1, "exception"),
        ("    sys.exit(3)", 3, "closed"),
        ("    raise KeyboardInterrupt", -2, "exception"),
    ],
    ids=["returns", "raises", "exits", "is interrupted"],
)
def test_a_process_sends_its_bye_by_itself(
    aggregator: Sink, run_script: Any, end: str, code: int, reason: str
) -> None:
    result = run_script(BEGIN + IN_MAIN + end)

    assert result.returncode == code, result.stderr
    assert steps(aggregator) == [0, 1, 2]
    assert aggregator.stored[-1].record == Bye(reason=reason, last_step=2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("method", "ends"),
    [("spawn", ["returns", "raises"]), ("fork", ["returns", "raises", "exits", "closes"])],
)
def test_children_of_multiprocessing_send_their_bye_too(
    aggregator: Sink, run_script: Any, method: str, ends: list[str]
) -> None:
    result = run_script(BEGIN + IN_CHILDREN, method, *ends)
    byes = {
        hello.run: [e.record for e in aggregator.stored if e.session == session][4:]
        for session, hello in aggregator.hellos.items()
    }
    codes = {"returns": 0, "raises": 1, "exits": 3, "closes": 0}

    assert result.stdout == f"{[codes[end] for end in ends]}\n", result.stderr
    assert byes == {
        end: [Bye(reason="exception" if end == "raises" else "closed", last_step=2)] for end in ends
    }


@pytest.mark.parametrize(("first_step", "count", "last_step"), [(0, 0, -1), (7, 0, -1), (7, 2, 8)])
def test_bye_names_the_last_step_that_has_ended(
    aggregator: Sink, first_step: int, count: int, last_step: int
) -> None:
    model = torch.nn.Linear(2, 1)
    watch, optimizer = aggregator.attach_sgd(model, first_step=first_step, every=100)
    for _ in range(count):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    assert aggregator.of(Bye) == [Bye(reason="closed", last_step=last_step)]


def test_a_forked_child_is_silent_and_its_parent_goes_on(aggregator: Sink, run_script: Any) -> None:
    """The child trains without being watched; nothing of it is sent, and it ends as it wants."""
    result = run_script(BEGIN + FORKS)

    assert result.returncode == 0, result.stderr
    assert result.stdout == "3\n5\n" * 2
    assert steps(aggregator) == [0, 1, 2, 3, 4, 5]
    assert [bye.reason for bye in aggregator.of(Bye)] == ["closed"]
    assert len(aggregator.hellos) == 1


def test_a_forked_child_may_attach_anew(aggregator: Sink, run_script: Any) -> None:
    result = run_script(BEGIN + ATTACHES_IN_FORK)
    sessions = {hello.run: session for session, hello in aggregator.hellos.items()}

    assert result.returncode == 0, result.stderr
    assert steps(aggregator, sessions["child"]) == [0, 1, 2]
    assert steps(aggregator, sessions["parent"]) == [0, 1, 2, 3, 4, 5]
    assert [bye.reason for bye in aggregator.of(Bye)] == ["closed"] * 2


@pytest.mark.exhaustive
@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_data_loader_with_workers_works(aggregator: Sink, run_script: Any, method: str) -> None:
    result = run_script(BEGIN + DATA_LOADER, method)

    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert steps(aggregator) == list(range(8))
    assert [type(hello) for hello in aggregator.hellos.values()] == [Hello]
    assert [bye.reason for bye in aggregator.of(Bye)] == ["closed"]


def test_a_process_ends_when_nobody_is_there(run_script: Any) -> None:
    """Closing at exit gives up."""
    end = """
    atexit._run_exitfuncs()
    print(watch.stats()["pending"])
"""
    result = run_script(BEGIN + IN_MAIN + end, GRADWATCH_ENDPOINT="tcp://127.0.0.1:9")

    assert result.stdout == "5\n"


def test_watches_that_nobody_closed_end_together(run_script: Any) -> None:
    """C48: one deadline for all of them; one after the other they would take 2 s each at least."""
    begin = """
if __name__ == "__main__":
    watches = [attach()[1] for _ in range(4)]
    began = time.monotonic()
    atexit._run_exitfuncs()
    took = time.monotonic() - began
    print(took < 7.0 or took, [watch._sender.is_alive() for watch in watches])
"""
    result = run_script(BEGIN + begin, GRADWATCH_ENDPOINT="tcp://127.0.0.1:9")

    assert result.stdout == f"True {[False] * 4}\n", result.stderr


def test_all_watches_that_nobody_closed_say_goodbye(aggregator: Sink, run_script: Any) -> None:
    several = """
if __name__ == "__main__":
    for run in ("one", "two", "three"):
        model, watch = attach(run)
        train(model, watch)
    watch.close()
"""
    result = run_script(BEGIN + several)

    assert result.returncode == 0, result.stderr
    assert sorted(steps(aggregator)) == sorted([0, 1, 2] * 3)  # each from a thread of its own
    assert [bye.reason for bye in aggregator.of(Bye)] == ["closed"] * 3


def test_an_exit_in_the_middle_of_a_backward_pass_is_no_deadlock(
    aggregator: Sink, run_script: Any
) -> None:
    """Wherever `sys.exit` is called from."""
    end = """
    model.weight.register_hook(lambda _: sys.exit(4))
    train(model, watch)
"""
    result = run_script(BEGIN + IN_MAIN + end)

    assert result.returncode == 4, result.stderr
    assert steps(aggregator) == [0, 1, 2]
    assert [bye.reason for bye in aggregator.of(Bye)] == ["closed"]
