"""A worker that writes spill files: it makes so many steps and says what it did."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable

import torch
from torch import nn

import gradwatch


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


parser = argparse.ArgumentParser()
parser.add_argument("--run", required=True)
parser.add_argument("--spill", required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--buffer", type=int, default=1 << 16)
parser.add_argument("--stay", action="store_true", help="wait to be killed")
arguments = parser.parse_args()

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
watch = gradwatch.attach(
    model, run=arguments.run, spill=arguments.spill, buffer_bytes=arguments.buffer
)
assert isinstance(watch, gradwatch.Watch)
sender, stats = watch._sender, watch.stats
print("training", flush=True)  # noqa: T201 - for the test
model(torch.ones(4, 64)).sum().backward()
for step in range(arguments.steps):
    watch.collect(step=step)
    if step % 500 == 0:
        wait_until(lambda: not sender.queue)  # what waits for the sender is bounded, too
wait_until(lambda: not stats()["pending"] or stats()["spilled"] == arguments.steps + 1)
print(stats()["spilled"], stats()["evicted"], stats()["dropped"], flush=True)  # noqa: T201
if arguments.stay:
    signal.pause()
wait_until(lambda: not stats()["pending"])
watch.close()
print(stats()["acked"], stats()["replayed"], flush=True)  # noqa: T201
