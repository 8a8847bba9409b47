"""A training process with a bug that leaves norms and loss healthy: one rank of DDP or FSDP2."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwatch

BUGS = ("none", "rate", "same-batch", "stale", "still-group", "not-zeroed")
FROM_STEP = 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--bug", choices=BUGS, required=True)
    parser.add_argument("--sharded", action="store_true", help="FSDP2 in place of DDP")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    if world > 1:
        dist.init_process_group("gloo")
        if args.sharded:
            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
    *others, weight, bias = model.parameters()
    rate = 0.0 if args.bug == "still-group" else 1e-3
    groups: list[dict[str, Any]] = [{"params": others}, {"params": [weight, bias], "lr": rate}]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    data = torch.Generator().manual_seed(0 if args.bug == "same-batch" else rank)
    with gradwatch.attach(model, optimizer, run=args.run) as watch:
        for step in range(args.steps):
            if args.bug == "rate" and step == FROM_STEP:
                for group in optimizer.param_groups:
                    group["lr"] = 0.0
            inputs = torch.randn(16, 32, generator=data)
            targets = torch.randint(10, (16,), generator=data)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            if args.bug != "stale" or step < FROM_STEP:
                if args.bug != "not-zeroed":
                    optimizer.zero_grad()
                loss.backward()
                watch.annotate(loss=loss)
            optimizer.step()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
