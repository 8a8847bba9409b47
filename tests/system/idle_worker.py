"""A training, of one process or of DDP ranks, in which a layer loses its gradient midway."""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch

MIDWAY = 40


class Network(nn.Module):
    """Three layers, of which the middle one may be used without its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.is_detached = False

    def forward(self, batch: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(batch))
        weight: Tensor = self.middle.weight
        bias: Tensor = self.middle.bias
        if self.is_detached:
            weight, bias = weight.data, bias.data
        hidden = hidden + torch.tanh(nn.functional.linear(hidden, weight, bias))
        out: Tensor = self.last(hidden)
        return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--midway", choices=("freeze", "detach", "detach, then freeze"))
    arguments = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = Network()
    model: nn.Module = network
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = gradwatch.attach(model, optimizer, run=arguments.run)
    sys.stdout.write("training\n")
    sys.stdout.flush()
    batches = torch.Generator().manual_seed(rank)
    for step in range(2 * MIDWAY):
        if step == MIDWAY:
            network.is_detached = "detach" in arguments.midway
            network.middle.requires_grad_(arguments.midway != "freeze")
        if step == MIDWAY + 10 and "then" in arguments.midway:
            network.middle.requires_grad_(False)
        optimizer.zero_grad()
        loss = model(torch.randn(32, 8, generator=batches)).square().mean()
        loss.backward()
        watch.collect(loss=loss)
        optimizer.step()
        assert (network.middle.weight.grad is None) == (step >= MIDWAY)
    watch.close()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
