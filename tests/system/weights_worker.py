"""One of several DDP ranks: a weight of one of them is corrupted in the middle of the training."""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--odd-rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    sys.stdout.write("training\n")
    sys.stdout.flush()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = gradwatch.attach(
        model, optimizer, run=arguments.run, weights_every=4, columns=["l2", "l1", "linf", "zeros"]
    )
    batches = torch.Generator().manual_seed(rank)
    for step in range(arguments.steps):
        if step == 10 and rank == arguments.odd_rank:
            with torch.no_grad():  # one of 35 weights, by a hundredth
                model.module[2].weight[3, 2] += 0.01
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4, generator=batches)).square().mean()
        loss.backward()
        watch.collect(loss=loss, batch_size=8)
        optimizer.step()
    watch.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
