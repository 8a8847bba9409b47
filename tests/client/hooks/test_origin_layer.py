"""The layer where a NaN began is the last bad one in forward order: it is right or not claimed.

A frame's origin is the last layer of a manifest with a non-finite gradient, if the manifest says
that it is in forward order. Here a NaN is born in the backward pass at a known place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch_wire import Manifest, Stats
from tests.support.recording import Sink

BACKEND = "aot_eager"  # traces forward and backward as inductor does, and needs no C++ compiler
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def poison(x: Tensor) -> Tensor:
    """Return x, finite, with a NaN for a gradient: the slope of a root at zero, times zero."""
    return x + torch.sqrt(x * 0.0)


class Stack(nn.Module):
    """Five layers, registered the last first; the gradient is NaN from layer 3 on."""

    def __init__(self) -> None:
        super().__init__()
        for number in reversed(range(5)):
            self.add_module(f"layer{number}", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        for number in range(5):
            x = torch.tanh(self.get_submodule(f"layer{number}")(x))
            if number == 3:
                x = poison(x)
        return x


def named(manifest: Manifest, stats: Stats) -> str | None:
    """Return the layer to name: None if the order is not claimed to be known."""
    norms = stats.columns["l2"].unpack()
    bad = [n for n, l2 in zip(manifest.names, norms, strict=True) if not math.isfinite(l2)]
    assert bad
    return bad[-1] if manifest.order == "forward" else None


def origins(aggregator: Any, count: int) -> list[str | None]:
    """Return the layer to name of each record."""
    sent = aggregator.stats(count)
    manifests = {manifest.manifest_id: manifest for manifest in aggregator.of(Manifest)}
    return [named(manifests[stats.manifest_id], stats) for stats in sent]


def plain(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x).sum()


def wrapped(model: nn.Module) -> Callable[[Tensor], Tensor]:
    compiled: Any = torch.compile(model, backend=BACKEND, fullgraph=True)
    return lambda x: compiled(x).sum()


def in_place(model: nn.Module) -> Callable[[Tensor], Tensor]:
    model.compile(backend=BACKEND, fullgraph=True)
    return plain(model)


def loss_function(model: nn.Module) -> Callable[[Tensor], Tensor]:
    @torch.compile(backend=BACKEND, fullgraph=True)
    def loss(x: Tensor) -> Tensor:
        total: Tensor = model(x).sum()
        return total

    return loss


COMPILED = [wrapped, in_place, loss_function]


def train(model: nn.Module, run: Callable[[Tensor], Tensor], watch: Any, *, loss: bool) -> None:
    """Run two steps, telling the watch the loss or not; the weights stay as they are."""
    for _ in range(2):
        model.zero_grad()
        total = run(torch.ones(2, 4))
        total.backward()
        watch.collect(loss=total if loss else None)


def test_an_eager_model_names_the_layer(aggregator: Sink) -> None:
    model = Stack()
    train(model, plain(model), aggregator.attach(model), loss=False)

    assert origins(aggregator, 2) == ["layer3.bias"] * 2


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize(("loss", "layer"), [(True, "layer3.bias"), (False, None)])
def test_a_model_compiled_after_attach_names_the_layer_by_its_loss(
    aggregator: Sink, compiled: Any, loss: bool, layer: str | None
) -> None:
    """Its graph is one node, which lists the parameters in the order of use; else no hook sees its
    output, and no order is claimed (C2)."""
    model = Stack()
    watch = aggregator.attach(model)
    train(model, compiled(model), watch, loss=loss)

    assert origins(aggregator, 2) == [layer] * 2


def test_a_model_compiled_before_attach_names_the_layer(aggregator: Sink) -> None:
    """The hook is on what `torch.compile` returned, which runs outside the graph."""
    model: Any = torch.compile(Stack(), backend=BACKEND, fullgraph=True)
    train(model, plain(model), aggregator.attach(model), loss=False)

    assert origins(aggregator, 2) == ["layer3.bias"] * 2


class Touching(nn.Module):
    """Looks at its first parameter, which it uses last, before it uses any."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.body = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(next(self.parameters()).dtype)
        return poison(torch.tanh(self.head(torch.tanh(self.body(x)))))


def test_a_parameter_that_compiled_code_looks_at_early_makes_no_false_order(
    aggregator: Sink,
) -> None:
    """The compiler lists it where it was looked at, apart from the bias beside it."""
    model: Any = torch.compile(Touching(), backend=BACKEND, fullgraph=True)
    train(model, plain(model), aggregator.attach(model), loss=True)
    sent = aggregator.of(Manifest)

    assert origins(aggregator, 2) == [None] * 2
    assert {manifest.order for manifest in sent} <= {"registration"}


@pytest.mark.parametrize("in_model", [True, False], ids=["the model", "its parts"])
def test_of_two_losses_the_one_that_is_bad_names_its_head(aggregator: Sink, in_model: bool) -> None:
    """Two backward passes over a shared trunk: head B's is NaN, and with it the trunk's (C4)."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b, self.trunk, self.a = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor, head: str) -> Tensor:
            y: Tensor = self.get_submodule(head)(torch.tanh(self.trunk(x)))
            return y

    model = TwoHeads()
    watch = aggregator.attach(model)
    call = model if in_model else model.forward
    for _ in range(3):
        model.zero_grad()
        call(torch.ones(2, 4), "a").sum().backward()
        poison(call(torch.ones(2, 4), "b")).sum().backward()
        watch.collect()

    assert origins(aggregator, 3) == ["b.bias" if in_model else None, "b.bias", "b.bias"]


SHARDED_SCRIPT = """
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwatch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)
        block = lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.blocks = nn.ModuleList(block() for _ in range(3))

    def forward(self, x, bad):
        for number, block in enumerate(self.blocks):
            x = block(x)
            x = x + torch.sqrt(x * 0.0) if number == bad else x
        x = self.head(x)
        return x + torch.sqrt(x * 0.0) if bad == 3 else x


def work(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=2)
    for kind in ("ddp", "fsdp", "fsdp-compiled"):
        model = Model()
        if kind == "ddp":
            model = DistributedDataParallel(model)
        else:
            for block in model.blocks:
                if kind == "fsdp-compiled":
                    block.compile(backend="aot_eager")
                fully_shard(block)
            fully_shard(model)
        with gradwatch.attach(model, run=kind) as watch:
            for bad in range(4):
                model.zero_grad()
                model(torch.ones(2, 3, 8), bad).sum().backward()
                watch.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


@pytest.mark.exhaustive
def test_a_sharded_model_names_the_layer_that_a_replicated_one_names(
    aggregator: Sink, run_script: Any, tmp_path: Any
) -> None:
    """FSDP2 with one group per block, also compiled, as DDP: 2 ranks, 4 places (C3)."""
    result = run_script(SHARDED_SCRIPT, tmp_path / "group")
    assert result.returncode == 0, result.stderr

    truth = [f"blocks.{number}.norm2.bias" for number in range(3)] + ["head.bias"]
    assert len(aggregator.hellos) == 6
    for session in aggregator.hellos:
        records = [e.record for e in aggregator.stored if e.session == session]
        manifests = {m.manifest_id: m for m in records if isinstance(m, Manifest)}
        sent = [record for record in records if isinstance(record, Stats)]
        assert [named(manifests[stats.manifest_id], stats) for stats in sent] == truth
