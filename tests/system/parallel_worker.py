"""One rank of a job of four whose parameters lie on the ranks by hand, as marks and groups say.

Prints the float64 norms of the same model on one process, the layers it holds, and its faults.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import gradwatch

WAYS = ("tp+pp", "tp+dp", "ep+dp", "zero1", "zero2", "torch zero", "unmarked", "unnamed", "empty")
WIDTH, HIDDEN, WORDS, STEPS, RATE = 6, 12, 8, 4, 0.125


GROUPS = {"near": [[0, 1], [2, 3]], "far": [[0, 2], [1, 3]], "most": [[0, 1, 2], [3]]}

DESCRIBED = {"near": "TENSOR_MODEL_PARALLEL_GROUP", "far": "DATA_PARALLEL_GROUP"}
"""Groups as Megatron describes them, which are found without being given."""


class Copy(torch.autograd.Function):
    """The same value on each rank of a group; its gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Sum(torch.autograd.Function):
    """The sum over the ranks of a group; its gradient is that of each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


_copied: Any = Copy.apply
_summed: Any = Sum.apply


class Block(nn.Module):
    """Two linear layers that a tensor group divides, and a norm that each of its ranks has."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_number = number
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.group: Any = None

    def divide(self, group: Any, *, marked: bool = True) -> None:
        """Keep the part of this rank."""
        part, size = dist.get_rank(group), dist.get_world_size(group)
        own = slice(part * HIDDEN // size, (part + 1) * HIDDEN // size)
        self.up.weight = nn.Parameter(self.up.weight[own].detach().clone())
        self.up.bias = nn.Parameter(self.up.bias[own].detach().clone())
        self.down.weight = nn.Parameter(self.down.weight[:, own].detach().clone())
        self.group = group
        for parameter in (self.up.weight, self.up.bias, self.down.weight) if marked else ():
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]  # as Megatron does

    def forward(self, x: Tensor) -> Any:
        inner = self.norm(x)
        if self.group is None:
            return x + self.down(torch.tanh(self.up(inner)))
        inner = _copied(inner, self.group)
        return x + _summed(self.down(torch.tanh(self.up(inner))), self.group)


class Experts(nn.Module):
    """Four experts, of which a word uses one; without a group all are here, else those of it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.mine = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.first = 0

    def divide(self, part: int) -> None:
        """Keep two of them."""
        self.first, self.mine = 2 * part, self.mine[2 * part : 2 * part + 2]
        for parameter in self.mine.parameters():
            parameter.allreduce = False  # type: ignore[attr-defined]

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """Return the output of the experts that are here: the ranks of the group add theirs up."""
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.mine):
            chosen = words % 3 == self.first + number  # the last one gets no word
            if chosen.any():
                out = out + expert(torch.tanh(self.gate(x))) * chosen.unsqueeze(-1)
        return out


class Model(nn.Module):
    """Embedding, two blocks, experts between them, and a head tied to the embedding."""

    def __init__(self, *, has_experts: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Block(1), Block(2)])
        self.experts = Experts() if has_experts else None

    def forward(self, words: Tensor) -> Any:
        x = self.layers[0](self.embed(words))
        if self.experts is not None:
            x = x + self.experts(x, words)
        return self.layers[1](x) @ self.embed.weight.T


class Stage(nn.Module):
    """Half of the model: a list in it counts its blocks from 0."""

    layers: Any
    output: Any

    def __init__(self, whole: Any, stage: int, group: Any, *, numbered: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([whole.layers[stage]])
        self.layers[0].divide(group)
        if not numbered:
            self.layers[0].layer_number = 0
        if stage == 0:
            self.embed = whole.embed
        else:
            self.output = nn.Linear(WIDTH, WORDS, bias=False)
            self.output.weight = nn.Parameter(whole.embed.weight.detach().clone())
            self.output.weight.shared = True

    def forward(self, x: Tensor) -> Any:
        if hasattr(self, "embed"):
            return self.layers[0](self.embed(x))
        return self.output(self.layers[0](x))


def batches(rank: int) -> Iterator[Tensor]:
    """Yield the words of a data rank, step by step: each expert but the last gets two."""
    generator = torch.Generator().manual_seed(rank + 1)
    for _ in range(STEPS):
        yield torch.randperm(6, generator=generator)


def loss_of(logits: Tensor, words: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, (words + 1) % WORDS)


def reference(way: str) -> list[dict[str, dict[str, float]]]:
    """Return norm and size of update of each layer at each step, in float64 on one process."""
    model = Model(has_experts=way == "ep+dp").double()
    ranks = {"tp+pp": [0], "unnamed": [0], "tp+dp": [0, 1], "ep+dp": [0, 1]}.get(way, range(4))
    found = []
    for step in zip(*(batches(rank) for rank in ranks), strict=True):
        model.zero_grad()
        for words in step:
            (loss_of(model(words), words) / len(step)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=RATE)
        found.append(
            {
                name: {
                    "l2": float(p.grad.norm()),
                    "update_rms": RATE * float(p.grad.norm()) / p.numel() ** 0.5,
                }
                for name, p in model.named_parameters()
                if p.grad is not None
            }
        )
    return found


class Trainer:
    """Training of one rank."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.way, self.rank = args, args.way, dist.get_rank()
        self.groups = {
            name: self.group_of(ranks, DESCRIBED.get(name, "") if self.way == "tp+dp" else "")
            for name, ranks in GROUPS.items()
        }
        whole: Any = Model(has_experts=self.way == "ep+dp")
        self.model: Any = whole
        self.parallel: dict[str, Any] | None = {"data": list(range(4))}
        self.data = self.rank
        near, far = self.groups["near"], self.groups["far"]
        if self.way in {"tp+pp", "unnamed"}:
            self.data = 0
            self.model = Stage(whole, self.rank // 2, near, numbered=self.way == "tp+pp")
            self.parallel = {"tensor": near, "pipeline": far, "data": [self.rank]}
        elif self.way in {"tp+dp", "unmarked"}:
            self.data = self.rank // 2
            for block in whole.layers:
                block.divide(near, marked=self.way == "tp+dp")
            self.parallel = None if self.way == "tp+dp" else {"tensor": near, "data": far}
        elif self.way == "ep+dp":
            # A word goes to all ranks of its expert group; each does those of its experts.
            self.data = self.rank // 2
            whole.experts.divide(self.rank % 2)
            self.parallel = {"expert": near, "data": far}
        elif self.way == "empty":
            self.parallel = {"data": [0, 1, 2] if self.rank < 3 else [3]}
            if self.rank == 3:
                self.model = nn.Identity()
        self.wrapped = self.model
        if self.way == "tp+dp":
            self.wrapped = DistributedDataParallel(whole, process_group=far)
        elif self.way == "torch zero":
            self.wrapped, self.parallel = DistributedDataParallel(whole), None

    def group_of(self, groups: list[list[int]], described: str) -> Any:
        made = [dist.new_group(ranks, group_desc=described) for ranks in groups]
        return next(group for group, ranks in zip(made, groups, strict=True) if self.rank in ranks)

    def parameters(self) -> list[nn.Parameter]:
        """Return those that this rank steps: under ZeRO a fourth of them."""
        own = list(self.model.parameters())
        return own[self.rank :: 4] if self.way.startswith("zero") else own

    def optimizer(self, trained: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.way == "torch zero":
            return ZeroRedundancyOptimizer(trained, torch.optim.SGD, lr=RATE)
        return torch.optim.SGD(trained, lr=RATE)

    def backward(self, words: Tensor) -> None:
        if self.way in {"tp+pp", "unnamed"}:
            self._pipeline(words)
        elif self.way == "ep+dp":
            self._experts(words)
        elif not (self.way == "empty" and self.rank == 3):
            loss_of(self.wrapped(words), words).backward()

    def _pipeline(self, words: Tensor) -> None:
        other = self.rank ^ 2
        if self.rank < 2:
            out = self.model(words)
            dist.send(out.detach(), other)
            gradient = torch.empty_like(out)
            dist.recv(gradient, other)
            out.backward(gradient)
        else:
            x: Any = torch.empty(len(words), WIDTH)
            dist.recv(x, other)
            x.requires_grad_()
            loss_of(self.model(x), words).backward()
            dist.send(x.grad, other)
        table = self.model.embed if self.rank < 2 else self.model.output
        dist.all_reduce(table.weight.grad, group=self.groups["far"])

    def _experts(self, words: Tensor) -> None:
        model, group = self.model, self.groups["near"]
        x = model.layers[0](model.embed(words))
        mixed = _summed(model.experts(_copied(x, group), words), group)
        loss_of(model.layers[1](x + mixed) @ model.embed.weight.T, words).backward()
        dist.all_reduce(model.experts.gate.weight.grad, group=group)
        dist.all_reduce(model.experts.gate.bias.grad, group=group)

    def reduce(self) -> None:
        """Average what several data ranks have."""
        if self.way == "empty":
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad, group=self.groups["most"])
        elif self.way in {"ep+dp", "unmarked"}:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self.groups["far"])
                    parameter.grad /= 2
        elif self.way in {"zero1", "zero2"}:
            for number, parameter in enumerate(self.model.parameters()):
                parameter.grad /= 4
                if self.way == "zero1":
                    dist.all_reduce(parameter.grad)
                else:
                    dist.reduce(parameter.grad, number % 4)
                    parameter.grad = parameter.grad if number % 4 == self.rank else None

    def spread(self) -> None:
        """Give all ranks the weights that one of them has stepped."""
        if self.way.startswith("zero"):
            for number, parameter in enumerate(self.model.parameters()):
                dist.broadcast(parameter.data, number % 4)

    def harm(self, step: int) -> None:
        """Put a NaN into the last gradient of a rank, or change a weight of it."""
        if step == STEPS - 1 and self.rank == self.args.poison_rank:
            self.model.layers[-1].down.weight.grad.view(-1)[0] = float("nan")
        if step == 1 and self.rank == self.args.corrupt_rank:
            with torch.no_grad():
                self.model.get_parameter(self.args.corrupt).view(-1)[0] += 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--poison-rank", type=int, default=-1, help="whose last gradient is bad")
    parser.add_argument("--corrupt-rank", type=int, default=-1, help="one of whose weights changes")
    parser.add_argument("--corrupt", default="layers.0.norm.weight")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    trainer = Trainer(args)
    trained = trainer.parameters()
    optimizer = trainer.optimizer(trained) if trained else None
    watch = gradwatch.attach(
        trainer.wrapped,
        optimizer,
        run=args.run,
        overhead=None,
        columns=("l2", "l1", "linf", "zeros", "nans"),
        parallel=trainer.parallel,
        updates_every=1,
        weights_every=1,
    )
    sys.stdout.write("training\n")
    sys.stdout.flush()
    for step, words in enumerate(batches(trainer.data)):
        trainer.model.zero_grad()
        trainer.backward(words)
        if args.way.startswith("zero"):
            trainer.harm(step)
        trainer.reduce()
        if not args.way.startswith("zero"):
            trainer.harm(step)
        if optimizer is not None:
            watch.collect()
            optimizer.step()
        trainer.spread()
    watch.close()
    report = {
        "rank": trainer.rank,
        "reference": reference(args.way) if trainer.rank == 0 else None,
        "faults": watch.stats()["last_error"],
    }
    sys.stdout.write(json.dumps(report) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
