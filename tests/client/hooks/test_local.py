"""`attach(local=True)`: each rank's own gradient, before the ranks are reduced."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from gradwatch_wire import Stats
from gradwatch_wire.columns import UNKNOWN
from tests.support.recording import Sink

DDP_SCRIPT = """
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch


def work(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2, bias=False), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gradwatch.attach(model, optimizer, run="test", local=True):
        for step in range(3):
            optimizer.zero_grad()
            # Accumulated over two micro-batches; the ranks are reduced in the second.
            with model.no_sync():
                model(torch.ones(1, 4)).sum().backward()
            scale = 1000.0 if rank == 1 and step == 1 else float(rank + 1)
            if rank == 1 and step == 2:
                scale = float("nan")
            (model(torch.ones(1, 4)).sum() * scale).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_rank_shows_its_own_gradient_beside_the_reduced_one(
    aggregator: Sink, run_script: Any, tmp_path: Any
) -> None:
    result = run_script(DDP_SCRIPT, tmp_path / "group")
    assert result.returncode == 0, result.stderr

    unit = math.sqrt(8.0)  # a gradient of ones
    for session, hello in aggregator.hellos.items():
        records = [e.record for e in aggregator.stored if e.session == session]
        sent = [record for record in records if isinstance(record, Stats)]
        reduced = [stats.columns["l2"].unpack()[0] / unit for stats in sent]
        local = [stats.columns["local_l2"].unpack()[0] / unit for stats in sent]

        assert reduced[:2] == pytest.approx([2.5, 501.5])
        assert math.isnan(reduced[2])
        if hello.rank == 0:
            assert local == pytest.approx([1.0, 1.0, 1.0])
        else:
            assert local[:2] == pytest.approx([2.0, 1000.0])
            assert math.isnan(local[2])


def test_a_layer_that_no_backward_pass_reached_got_nothing_here(aggregator: Sink) -> None:
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model, local=True)
    model(torch.ones(1, 4)).sum().backward()
    assert model.weight.grad is not None
    model.weight.grad.mul_(10.0)
    watch.collect()
    watch.collect()
    first, second = aggregator.stats(2)

    assert aggregator.layers(first)["weight"] == pytest.approx(10 * math.sqrt(8))
    assert aggregator.layers(first, "local_l2")["weight"] == pytest.approx(math.sqrt(8))
    assert set(aggregator.layers(second, "local_l2").values()) == {0.0}


def backward(model: nn.Module) -> None:
    model.zero_grad()
    model(torch.ones(1, 4)).sum().backward()


def test_a_layer_that_was_unfrozen_is_unknown_until_its_hook_is_in_place(aggregator: Sink) -> None:
    """C11: there is a gradient, and no hook has seen it: it is not zero, and not NaN."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    model[0].requires_grad_(False)
    watch = aggregator.attach(model, local=True)
    for step in range(4):
        if step == 1:
            model[0].requires_grad_(True)
        backward(model)
        watch.collect()
    sent = aggregator.stats(4)
    local = [aggregator.layers(stats, "local_l2") for stats in sent]
    reduced = [aggregator.layers(stats) for stats in sent]

    assert local[0].keys() == {"1.weight"}
    assert local[1]["0.weight"] < 0.0
    assert local[1]["1.weight"] == pytest.approx(reduced[1]["1.weight"])
    assert local[2:] == [pytest.approx(norms) for norms in reduced[2:]]
    assert watch.stats()["faults"] == 0


def test_a_layer_that_was_replaced_is_unknown_for_the_pass_that_shows_it(aggregator: Sink) -> None:
    """C11: the hook on the old parameter saw nothing; the next pass is measured."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    watch = aggregator.attach(model, local=True)
    for step in range(3):
        if step == 1:
            model[1] = nn.Linear(4, 2, bias=False)
        backward(model)
        watch.collect()
    local = [aggregator.layers(stats, "local_l2")["1.weight"] for stats in aggregator.stats(3)]
    hooks = [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]

    assert [norm < 0.0 for norm in local] == [False, True, False]
    assert hooks == [1, 1]


def test_a_layer_whose_tensor_was_swapped_is_unknown_and_that_is_told(aggregator: Sink) -> None:
    """C11: `swap_tensors` takes the hook along to a tensor that is not watched."""
    model = nn.Linear(4, 2, bias=False)
    watch = aggregator.attach(model, local=True)
    backward(model)
    watch.collect()
    old = nn.Parameter(torch.ones(2, 4))
    torch.utils.swap_tensors(model.weight, old)
    for _ in range(2):
        backward(model)
        (old * 1e6).sum().backward()
        watch.collect()
    sent = aggregator.stats(3)
    local = [aggregator.layers(stats, "local_l2")["weight"] for stats in sent]

    assert local[0] == pytest.approx(math.sqrt(8))
    assert local[1] < 0.0
    assert local[2] < 0.0
    assert "the tensor of weight was swapped" in str(watch.stats()["last_error"])


def test_a_pass_that_was_not_measured_is_unknown(aggregator: Sink) -> None:
    """C11: the step turns out to be due only when `collect` gives it a number."""
    model = nn.Linear(4, 2, bias=False)
    watch = aggregator.attach(model, local=True, every=10)
    backward(model)
    watch.collect(step=5)
    backward(model)
    stats = aggregator.collected(watch, step=20)

    assert stats.step == 20
    assert aggregator.layers(stats)["weight"] == pytest.approx(math.sqrt(8))
    assert aggregator.layers(stats, "local_l2")["weight"] < 0.0


def test_steps_that_are_not_collected_are_not_measured_and_closing_removes_the_hooks(
    aggregator: Sink,
) -> None:
    """A norm per parameter is not free."""
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model, local=True, every=3)
    observers: Any = watch._recorder.observed._observers
    (local,) = observers
    measured = []
    for _ in range(4):
        model(torch.ones(1, 4)).sum().backward()
        measured.append(len(local._norms))
        watch.collect()
    watch.close()

    assert measured == [2, 0, 0, 2]
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.slow
def test_a_sharded_layer_has_no_local_norm(
    aggregator: Sink, one_process: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its hook runs after the reduction. Beside whole ones it is unknown, alone left out (C1)."""
    mesh = init_device_mesh("cpu", (1,))
    model = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
    model[0].weight = nn.Parameter(distribute_tensor(torch.ones(2, 4), mesh, [Shard(0)]))
    model[0].bias = nn.Parameter(distribute_tensor(torch.ones(2), mesh, [Replicate()]))
    watch = aggregator.attach(model, local=True)
    for count in (2, 1):
        model.zero_grad()
        for layer in list(model)[:count]:
            for parameter in layer.parameters():
                parameter.sum().backward()
        watch.collect()
    first, second = aggregator.stats(2)

    local = aggregator.layers(first, "local_l2")
    assert [local[name] for name in ("0.weight", "0.bias")] == [UNKNOWN] * 2
    assert local["1.bias"] == pytest.approx(math.sqrt(2.0))
    assert math.isfinite(first.scalars["local_probe"])
    assert "local_l2" not in second.columns
    assert "local_probe" not in second.scalars
    assert caplog.text.count("knows nothing of 0.weight") == 1


@pytest.mark.usefixtures("rank_0_of_2")
@pytest.mark.slow
@pytest.mark.parametrize("local", [True, False])
def test_one_pass_for_two_optimizers_shows_each_what_its_own_layers_got(
    aggregator: Sink, local: bool
) -> None:
    """The record of the first takes nothing from that of the second."""
    models = {"one": nn.Linear(4, 1, bias=False), "two": nn.Linear(4, 1, bias=False)}
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models.values()]
    aggregator.attach(models, optimizers, local=local)
    loss = models["one"](torch.ones(1, 4)).sum() + models["two"](torch.full((1, 4), 2.0)).sum()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    first, second = aggregator.stats(2)

    if local:
        assert first.columns["local_l2"].unpack() == [2.0]
        assert second.columns["local_l2"].unpack() == [4.0]
    assert first.scalars["local_probe"] == (2.0 if local else 4.0)
    assert second.scalars["local_probe"] == (4.0 if local else 8.0)
