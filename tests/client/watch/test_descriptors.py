"""File descriptors run short: `attach` refuses with a line, and later training goes on."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch._transport.room import DESCRIPTORS
from gradwatch_wire import Stats
from tests.support.recording import Sink

# Everything that is imported late is imported here, before descriptors run short.
BEGIN = """
import logging, os, resource, sys, threading
import torch, torch._dynamo, torch.optim
from torch import nn
import gradwatch

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
torch.save(model.state_dict(), os.devnull)

def leave(free):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(free):
        os.close(held.pop())
    return held

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
"""

FEW_AT_ATTACH = """
for free in range(int(sys.argv[1])):
    held = leave(free)
    before = sorted(os.listdir("/proc/self/fd")) if free else None
    try:
        gradwatch.attach(model, optimizer, run="test")
    except ValueError as error:
        said = str(error)
    after = sorted(os.listdir("/proc/self/fd")) if free else None
    for descriptor in held:
        os.close(descriptor)
    print(before == after, threading.active_count(), len(optimizer._optimizer_step_pre_hooks), said)
train(3)
os._exit(0)
"""

NONE_LATER = """
class Raising(logging.Handler):
    def emit(self, record):
        raise RuntimeError("a handler that raises")

def call(alert):
    raise RuntimeError("a callback that raises")

logging.getLogger("gradwatch").addHandler(Raising())
spill = sys.argv[1] if len(sys.argv) > 1 else None
watch = gradwatch.attach(model, optimizer, run="test", on_alert=call, spill=spill)
held = leave(0)
train(50)
watch.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for descriptor in held:
    os.close(descriptor)
stats = watch.stats()
print(stats["collected"], stats["acked"], stats["pending"], stats["last_error"])
"""


def test_too_few_descriptors_at_attach_are_one_clear_error(run_script: Any) -> None:
    """C27: ZeroMQ aborted the process with 2 or 4 free, and its thread died unheard with others."""
    result = run_script(BEGIN + FEW_AT_ATTACH, str(DESCRIPTORS))

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"True 1 0 file descriptors: {DESCRIPTORS} are needed, {free} of 64 are free; raise the "
        "limit (ulimit -n), or close files"
        for free in range(DESCRIPTORS)
    ]


@pytest.mark.exhaustive
def test_as_many_as_it_asks_for_are_enough(aggregator: Sink, run_script: Any) -> None:
    script = "leave(int(sys.argv[1]))\nwatch = gradwatch.attach(model, optimizer, run='test')\n"
    script += "train(5)\nwatch.close()\nprint(watch.stats()['pending'], watch.stats()['faults'])\n"
    result = run_script(BEGIN + script, str(DESCRIPTORS))

    assert (result.returncode, result.stdout) == (0, "0 0\n"), result.stderr
    assert len(aggregator.of(Stats)) == 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:9", "tcp://localhost:9"])
def test_descriptors_that_run_out_later_do_not_end_training(run_script: Any, endpoint: str) -> None:
    result = run_script(BEGIN + NONE_LATER, GRADWATCH_ENDPOINT=endpoint)

    assert (result.returncode, result.stdout) == (0, "50 0 52 \n"), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.exhaustive
def test_spill_files_that_cannot_be_opened_are_a_fault(run_script: Any, tmp_path: Any) -> None:
    """The records are in memory all the same."""
    result = run_script(BEGIN + NONE_LATER, str(tmp_path), GRADWATCH_ENDPOINT="tcp://127.0.0.1:9")

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("50 0 52 spill: [Errno 24] Too many open files"), result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.exhaustive
def test_a_connection_that_stands_needs_no_more(aggregator: Sink, run_script: Any) -> None:
    wait = "import time\nwhile watch._sender.session.phase.name != 'OPEN': time.sleep(0.01)\n"
    script = NONE_LATER.replace("held = leave(0)\n", wait + "held = leave(0)\n")
    result = run_script(BEGIN + script)

    assert (result.returncode, result.stdout) == (0, "50 52 0 \n"), result.stderr
    assert len(aggregator.of(Stats)) == 50
