"""One rank of a job whose parameters are sharded; prints what the whole model's norms are."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gradwatch

WAYS = ("fsdp", "hsdp", "tp", "fsdp+tp")


def make_model() -> nn.Sequential:
    """Sizes that no number of ranks divides: uneven and empty shards."""
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            first=nn.Linear(6, 12),
            second=nn.Linear(12, 4),
            odd=nn.Linear(4, 3, bias=False),
            norm=nn.LayerNorm(3),
            last=nn.Linear(3, 1),
        )
    )


def shard(model: nn.Sequential, way: str, world: int) -> None:
    """Divide the model over the ranks."""
    if way == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
    elif way == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    elif way == "tp":
        cut_tensors(model, init_device_mesh("cpu", (world,)))
        return
    else:
        both = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        cut_tensors(model, both["tp"])
        mesh = both["dp"]
    for module in model:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def cut_tensors(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Tensor parallelism over the first two layers."""
    parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})


def poison(layer: nn.Module) -> None:
    def hook(_: nn.Module, __: object, output: torch.Tensor) -> None:
        bad = torch.zeros(output.shape[-1])
        bad[0] = float("nan")
        output.register_hook(lambda gradient: gradient + bad)

    layer.register_forward_hook(hook)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--poison-rank", type=int, default=-1, help="whose last step is bad")
    parser.add_argument("--way", choices=WAYS, required=True)
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    whole, model = make_model(), make_model()
    shard(model, args.way, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    names = [name for name, _ in whole.named_parameters()]
    watch = gradwatch.attach(
        model,
        optimizer,
        run=args.run,
        groups={name: name for name in names},
        columns=("l2", "l1", "linf", "zeros"),
        local=args.local,
    )
    sys.stdout.write("training\n")
    sys.stdout.flush()
    for step in range(3):
        if step == 2 and rank == args.poison_rank:
            poison(model.get_submodule("first"))
        whole.zero_grad()
        optimizer.zero_grad()
        for each in (whole, model):
            each(batch).square().mean().backward()
        optimizer.step()
    gradients = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    total = nn.utils.get_total_norm(list(gradients.values()))
    watch.close()
    report = {
        "total": float(total),
        "layers": {name: float(gradient.norm()) for name, gradient in gradients.items()},
        "faults": watch.stats()["last_error"],
        "rank": rank,
    }
    sys.stdout.write(json.dumps(report) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
