"""A worker that writes spill files: it makes so many steps and says what it did."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import gradwatch

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
print("training", flush=True)  # noqa: T201 - for the test
model(torch.ones(4, 64)).sum().backward()
for step in range(arguments.steps):
    watch.collect(step=step)
    if step % 500 == 0:
        time.sleep(0.02)  # what waits for the sender is bounded, too
while watch.stats()["pending"] and watch.stats()["spilled"] < arguments.steps + 1:
    time.sleep(0.01)
stats = watch.stats()
print(stats["spilled"], stats["evicted"], stats["dropped"], flush=True)  # noqa: T201
if arguments.stay:
    time.sleep(600)
while watch.stats()["pending"]:
    time.sleep(0.01)
watch.close()
print(watch.stats()["acked"], watch.stats()["replayed"], flush=True)  # noqa: T201
