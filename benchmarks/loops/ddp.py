"""Data parallelism: two processes, each with the whole model and a batch of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.loops.networks import Network, loss_of
from benchmarks.loops.registry import loop
from benchmarks.loops.trial import Trial

MICRO_BATCHES = 3


def train(
    trial: Trial,
    *,
    micro_batches: int = 1,
    no_sync: bool = False,
    comm_hook: Callable[..., Any] | None = None,
    loss_factor: float = 1.0,
    attach: dict[str, Any] | None = None,
    **settings: Any,
) -> nn.Module:
    """Train with AdamW and clipping.

    Args:
        trial: Which one.
        micro_batches: Backward passes per step. The fault is in the last.
        no_sync: Whether only the last of them reduces.
        comm_hook: Communication hook.
        loss_factor: What the loss is multiplied by.
        attach: Further arguments of `attach`.
        settings: Arguments of DistributedDataParallel.
    """
    network = Network()
    model = DistributedDataParallel(network, **settings)
    if comm_hook is not None:
        model.register_comm_hook(None, comm_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trial.inject(network, "blocks.1.down")
    trial.attach(model, optimizer, **(attach or {}))
    for step in range(trial.steps):
        losses = []
        for micro in range(micro_batches):
            is_last = micro == micro_batches - 1
            trial.at(step, here=is_last)
            reducing = contextlib.nullcontext() if is_last or not no_sync else model.no_sync()
            with reducing:
                loss = loss_of(model, step, trial.rank, micro) * loss_factor
                (loss / micro_batches).backward()
            trial.tell_loss(loss)
            losses.append(loss.item())
        trial.truth.step(step, network, optimizer, loss=sum(losses) / len(losses))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return network


@loop("DDP", ranks=2)
def ddp(trial: Trial) -> nn.Module:
    return train(trial)


@loop("DDP, local=True", ranks=2)
def ddp_local(trial: Trial) -> nn.Module:
    return train(trial, attach={"local": True})


@loop("DDP, accumulation", ranks=2)
def ddp_accumulation(trial: Trial) -> nn.Module:
    return train(trial, micro_batches=MICRO_BATCHES)


@loop("DDP, accumulation under no_sync", ranks=2)
def ddp_no_sync(trial: Trial) -> nn.Module:
    return train(trial, micro_batches=MICRO_BATCHES, no_sync=True)


@loop("DDP, static graph", ranks=2)
def ddp_static_graph(trial: Trial) -> nn.Module:
    return train(trial, static_graph=True)


@loop("DDP, gradients as bucket views", ranks=2)
def ddp_bucket_view(trial: Trial) -> nn.Module:
    return train(trial, gradient_as_bucket_view=True, micro_batches=MICRO_BATCHES, no_sync=True)


@loop("DDP, fp16 compression hook", ranks=2)
def ddp_fp16(trial: Trial) -> nn.Module:
    return train(
        trial,
        comm_hook=fp16_compress_hook,
        loss_factor=2.0**-6,  # so that the explosion fits into float16
    )
