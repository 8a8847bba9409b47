"""One of two DDP ranks: trains once per way, and rank 1 makes a NaN at step 2 of each."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch

FAULTY_STEP: Final = 2
FAULTY_RANK: Final = 1
STEPS: Final = 8


class Network(nn.Module):
    """Three layers; what happens in the middle can go wrong in either direction."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.fault = ""

    def forward(self, batch: Tensor) -> Tensor:
        x = torch.tanh(self.first(batch))
        if self.fault == "forward":
            x = x + (x * 0.0) / (x.detach() * 0.0)
        x = self.second(x)
        if self.fault == "backward":
            x = x + torch.sqrt(x * 0.0)  # finite, and the slope of a root at zero is not
        y: Tensor = self.head(torch.tanh(x))
        return y + torch.sqrt(y * 0.0) if self.fault == "loss" else y


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ways", required=True)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    sys.stdout.write("training\n")
    sys.stdout.flush()
    for way in parser.parse_args().ways.split(","):
        train(way, rank, world)
    dist.destroy_process_group()


def train(way: str, rank: int, world: int) -> None:
    """Train as `way` says, which is the name of the run, too."""
    torch.manual_seed(0)
    network = Network()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    accumulates = way.startswith("accumulate")
    watch = gradwatch.attach(
        model,
        None if way == "accumulate-collect" else optimizer,
        run=way,
        local="local" in way,
        activations="activations" in way,
        report_every=4 if way.startswith("report") else 1,
    )
    fault = next((each for each in ("loss", "backward") if way.startswith(each)), "forward")
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(2 if accumulates else 1):
            faulty = (rank, step, number) == (FAULTY_RANK, FAULTY_STEP, 0)
            network.fault = fault if faulty else ""
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
        if way in {"forward", "backward", "loss", "report", "report-local"}:
            watch.collect(loss=loss)
        elif way == "same-loss":
            everyones = loss.detach().clone()
            dist.all_reduce(everyones)
            watch.collect(loss=everyones / world)
        elif way == "accumulate-collect":
            watch.collect()
        optimizer.step()
    watch.close()


if __name__ == "__main__":
    main()
