"""One rank of a job under `torch.distributed.pipelining`, with DTensors or FSDP2 in each stage.

Prints the norms of the same model on one process.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gradwatch

WAYS = {"tp": ("pp", "tp"), "fsdp": ("pp", "dp")}
SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
STEPS, WIDTH, CLASSES = 4, 8, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Any:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """Four blocks by name, and a head; a stage keeps two of the blocks."""

    def __init__(self, stage: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = {str(number): Block() for number in range(4)}
        head = nn.Linear(WIDTH, CLASSES)
        own = [name for name in blocks if stage in {None, int(name) // 2}]
        self.layers = nn.ModuleDict({name: blocks[name] for name in own})
        self.head = None if stage == 0 else head

    def forward(self, x: Tensor) -> Any:
        for block in self.layers.values():
            x = block(x)
        return x if self.head is None else self.head(x)


def batch(step: int, data: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 * step + data)
    x = torch.randn(8, WIDTH, generator=generator)
    return x, torch.randint(0, CLASSES, (8,), generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--schedule", choices=SCHEDULES, required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=WAYS[args.way])
    number, inner = mesh["pp"].get_local_rank(), mesh[WAYS[args.way][1]]
    model, whole = Model(number), Model()
    if args.way == "tp":
        for block in model.layers.values():
            parallelize_module(block, inner, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    else:
        for part in (*model.layers.values(), model):
            fully_shard(part, mesh=inner)
    stage = PipelineStage(model, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    loss_of = nn.functional.cross_entropy
    schedule = SCHEDULES[args.schedule](stage, n_microbatches=4, loss_fn=loss_of)
    optimizer, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, whole))
    ranks = [0] if args.way == "tp" else [0, 1]
    data = 0 if args.way == "tp" else inner.get_local_rank()
    watch = gradwatch.attach(model, optimizer, run=args.run, overhead=None, columns=("l2",))
    for step in range(STEPS):
        x, y = batch(step, data)
        optimizer.zero_grad()
        if number == 0:
            schedule.step(x)
            watch.collect()
        else:
            losses: list[Tensor] = []
            schedule.step(target=y, losses=losses)
            watch.collect(loss=torch.stack(losses).mean())
        optimizer.step()
        other.zero_grad()
        for each in ranks:
            x, y = batch(step, each)
            (loss_of(whole(x), y) / len(ranks)).backward()
        if step < STEPS - 1:
            other.step()
    x_y = [batch(STEPS - 1, each) for each in ranks]
    report = {
        "layers": {
            name: float(p.grad.norm()) for name, p in whole.named_parameters() if p.grad is not None
        },
        "loss": sum(float(loss_of(whole(x), y).detach()) for x, y in x_y) / len(ranks),
    }
    watch.close()
    report["faults"] = watch.stats()["last_error"]
    sys.stdout.write(json.dumps(report) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
