"""One of two DDP ranks that attaches when it is told to, and trains when it is told to."""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch


def wait(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    sys.stdin.readline()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--broken", action="store_true", help="its loss is NaN")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wait("met")
    watch = gradwatch.attach(model, optimizer, run=arguments.run)
    wait("attached")
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss = loss * float("nan") if arguments.broken else loss
        loss.backward()
        watch.collect(loss=loss)
        optimizer.step()
    wait("trained")
    watch.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
