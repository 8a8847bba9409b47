"""Trains a small network with DDP in two processes; rank 1's eleventh batch has a NaN in it.

    gradwatch serve
    torchrun --standalone --nproc-per-node 2 docs/examples/train_ddp.py
    gradwatch health ddp-example

gradwatch is in two lines: `attach` comes after `DistributedDataParallel`, `annotate` adds the loss.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch

SPOILT = 10  # steps count from 0


def main() -> None:
    """Train for 20 steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dice = torch.Generator().manual_seed(dist.get_rank())
    with gradwatch.attach(model, optimizer, run="ddp-example") as watch:
        for step in range(20):
            batch = torch.randn(8, 16, generator=dice)
            target = batch.sum(dim=1, keepdim=True)
            if step == SPOILT and dist.get_rank() == 1:
                batch[0, 3] = torch.nan

            loss = nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            watch.annotate(loss=loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
