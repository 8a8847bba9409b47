"""Fully sharded data parallelism, version 2: one group of parameters per block."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from benchmarks.loops.networks import Network, batch
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial

MICRO_BATCHES = 3


def train(
    trial: Trial, *, micro_batches: int = 1, attach: dict[str, Any] | None = None, **settings: Any
) -> nn.Module:
    """Train with AdamW and clipping.

    Args:
        trial: Which one.
        micro_batches: Backward passes per step, of which only the last reduces. It has the fault.
        attach: Further arguments of `attach`.
        settings: Arguments of `fully_shard`.
    """
    model = Network()
    trial.inject(model, "blocks.1.down")
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    assert isinstance(model, FSDPModule)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trial.attach(model, optimizer, **(attach or {}))
    for step in range(trial.steps):
        losses = []
        for micro in range(micro_batches):
            is_last = micro == micro_batches - 1
            trial.at(step, here=is_last)
            model.set_requires_gradient_sync(is_last)
            x, y = batch(step, trial.rank, micro)
            loss = nn.functional.mse_loss(model(x).float(), y)
            (loss / micro_batches).backward()
            trial.tell_loss(loss)
            losses.append(loss.item())
        trial.truth.step(step, model, optimizer, loss=sum(losses) / len(losses))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop("FSDP2", ranks=2)
def fsdp(trial: Trial) -> nn.Module:
    return train(trial)


@loop("FSDP2, mixed precision", ranks=2)
def fsdp_mixed_precision(trial: Trial) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(trial, mp_policy=policy)


@loop("FSDP2, local=True", ranks=2)
def fsdp_local(trial: Trial) -> nn.Module:
    return train(trial, attach={"local": True})


@loop("FSDP2, accumulation without reduction", ranks=2)
def fsdp_accumulation(trial: Trial) -> nn.Module:
    return train(trial, micro_batches=MICRO_BATCHES)


@loop("HSDP, 2 x 2", ranks=4)
def hsdp(trial: Trial) -> nn.Module:
    names = ("replicate", "shard")
    return train(trial, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=names))
