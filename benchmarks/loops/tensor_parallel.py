"""Tensor parallelism: two processes work on the same batch, each with a part of the layers."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from benchmarks.loops.networks import WIDTH, Block, Network, batch
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial

CLASSES = 4


class NormBlock(Block):
    """A block that begins with a norm, which every process has whole."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, width) for (batch, width)."""
        return x + self.down(torch.tanh(self.up(self.norm(x))))  # type: ignore[no-any-return]  # of a module


def train(trial: Trial, *, is_loss_parallel: bool) -> nn.Module:
    """Train with AdamW. A fault is on all ranks, for they work on the same batch."""
    trial.fault.rank = None
    model = Network()
    model.blocks = nn.ModuleList(NormBlock() for _ in range(3))
    model.head = nn.Linear(WIDTH, CLASSES)
    trial.inject(model, "blocks.1.norm")
    plan: dict[str, ParallelStyle] = {"blocks.*.up": ColwiseParallel()}
    plan["blocks.*.down"] = RowwiseParallel()
    if is_loss_parallel:
        plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    # Parts and whole parameters in one optimizer: not all at once.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    trial.attach(model, optimizer)
    with loss_parallel() if is_loss_parallel else contextlib.nullcontext():
        for step in range(trial.steps):
            trial.at(step)
            x, y = batch(step)
            classes = (CLASSES * torch.sigmoid(y.squeeze(1))).long()
            loss = nn.functional.cross_entropy(model(x), classes)
            loss.backward()
            trial.tell_loss(loss)
            whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
            trial.truth.step(step, model, optimizer, loss=whole.item())
            optimizer.step()
            optimizer.zero_grad()
    return model


@loop("tensor parallel", ranks=2)
def tensor_parallel(trial: Trial) -> nn.Module:
    return train(trial, is_loss_parallel=False)


@loop("tensor parallel, parallel loss", ranks=2)
def tensor_parallel_loss(trial: Trial) -> nn.Module:
    return train(trial, is_loss_parallel=True)
