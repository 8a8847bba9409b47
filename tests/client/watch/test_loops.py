"""Training loops as people write them: the step, the norm and what became of it, from outside."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch_wire import Manifest, Stats
from tests.support.recording import Sink

pytestmark = pytest.mark.slow


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model: nn.Module, seed: int = 0, scale: float = 1.0) -> Tensor:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    loss: Tensor = model(x).square().mean() * scale
    return loss


def total(aggregator: Any, stats: Stats) -> float:
    return math.hypot(*aggregator.layers(stats).values())


def true_total(model: nn.Module) -> float:
    norms = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
    return float(torch.stack(norms).norm())


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_closure(aggregator: Sink, micro_batches: int, collects: bool) -> None:
    """The backward pass within `step` is that step's, also the last (C5)."""
    model = make()
    watch, optimizer = aggregator.attach_sgd(model)
    true = []
    for step in range(3):
        optimizer.zero_grad()
        for number in range(micro_batches - 1):
            loss_of(model, 10 * step + number).backward()

        def closure(step: int = step) -> Tensor:
            loss = loss_of(model, 10 * step + 9)
            loss.backward()
            true.append(true_total(model))
            if collects:
                watch.collect(loss=loss)
            return loss

        optimizer.step(closure)
    sent = aggregator.stats(3)

    assert [stats.step for stats in sent] == [0, 1, 2]
    assert [total(aggregator, stats) for stats in sent] == pytest.approx(true, rel=1e-5)
    assert ["loss" in stats.scalars for stats in sent] == [collects] * 3


def test_lbfgs(aggregator: Sink) -> None:
    """Its evaluations are no steps (C5)."""
    model = make()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    watch = aggregator.attach(model, optimizer)
    norms: list[float] = []
    first = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        norms.append(true_total(model))
        watch.collect(loss=loss)
        return loss

    for _ in range(3):
        evaluations = len(norms)
        optimizer.step(closure)
        first.append(norms[evaluations])
    sent = aggregator.stats(3)

    assert len(norms) > 3
    assert [stats.step for stats in sent] == [0, 1, 2]
    assert [total(aggregator, stats) for stats in sent] == pytest.approx(first, rel=1e-5)
    assert watch.stats()["faults"] == 0


@pytest.mark.parametrize("to_none", [True, False])
def test_the_scripts_own_guard(aggregator: Sink, to_none: bool) -> None:
    """A step that is not taken is a record of its own, at its own step (C6)."""
    model = make()
    watch, optimizer = aggregator.attach_sgd(model)
    bad = {1, 4, 5, 8, 11}
    for step in range(12):
        optimizer.zero_grad(set_to_none=to_none)
        loss_of(model, step, math.nan if step in bad else 1.0).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            continue
        optimizer.step()
    watch.close()
    sent = aggregator.stats(12)

    assert [stats.step for stats in sent] == list(range(12))
    assert {s.step for s in sent if math.isnan(total(aggregator, s))} == bad
    assert {s.step for s in sent if not s.labels["taken"]} == bad


def test_clipping(aggregator: Sink) -> None:
    """The norm is that before it (C7)."""
    model = make()
    _, optimizer = aggregator.attach_sgd(model, lr=1e-6)
    true = []
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, 1e4).backward()
        true.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()

    assert min(true) > 100
    sent = aggregator.stats(3)
    assert [total(aggregator, stats) for stats in sent] == pytest.approx(true, rel=1e-5)


def test_collect_for_each_micro_batch(aggregator: Sink) -> None:
    """Forty steps of four micro-batches are forty steps (C8)."""
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, lr=0.01)
    for batch in range(160):
        loss = loss_of(model, batch)
        loss.backward()
        watch.collect(loss=loss)
        if batch % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()

    assert [stats.step for stats in aggregator.stats(40)] == list(range(40))


def test_two_networks_stepped_at_different_rates(aggregator: Sink) -> None:
    """`collect` before each of their steps makes no more steps than they take (C8)."""
    models = {"critic": make(), "actor": make()}
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models.values()]
    watch = aggregator.attach(models, optimizers)
    for step in range(30):
        optimizers[0].zero_grad()
        loss_of(models["critic"], step).backward()
        watch.collect(loss=1.0)
        optimizers[0].step()
        if step % 2:
            optimizers[1].zero_grad()
            loss_of(models["actor"], step).backward()
            watch.collect(loss=2.0)
            optimizers[1].step()
    sent = aggregator.stats(45)

    assert sorted({stats.step for stats in sent}) == list(range(30))
    assert {stats.scalars["loss"] for stats in sent if stats.part == 0} == {1.0}
    assert {stats.scalars["loss"] for stats in sent if stats.part == 1} == {2.0}
    assert watch.stats()["faults"] == 0


@pytest.mark.parametrize("every", [1, 2, 3])
def test_two_optimizers_of_which_a_guard_skips_one(aggregator: Sink, every: int) -> None:
    """The skipped one's record is a part of its own step, though the other has gone on."""
    models = {"a": make(), "b": make()}
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models.values()]
    watch = aggregator.attach(models, optimizers, every=every)
    for step in range(6):
        for number, (model, optimizer) in enumerate(zip(models.values(), optimizers, strict=True)):
            optimizer.zero_grad()
            bad = number == 1 and step in {2, 3}
            loss_of(model, step, math.nan if bad else 1.0).backward()
            if not bad:
                optimizer.step()
    watch.close()
    due = [step for step in range(6) if step % every == 0]
    sent = aggregator.stats(2 * len(due))

    assert sorted((stats.step, stats.part) for stats in sent) == [
        (step, part) for step in due for part in (0, 1)
    ]
    nans = {stats.step for stats in sent if math.isnan(total(aggregator, stats))}
    assert nans == {2, 3}.intersection(due)


# Two ranks: accumulation without sync, clipping, and a guard that skips the step of a bad batch.
RANKS = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
import gradwatch

def work(rank, path, kind):
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=dist.init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch.attach(model, optimizer, run=kind):
        for step in range(4):
            optimizer.zero_grad()
            for micro_batch in range(2):
                last = micro_batch == 1
                if kind == "ddp":
                    model.require_backward_grad_sync = last
                else:
                    model.set_requires_gradient_sync(last)
                batch = torch.randn(8, 4)
                if rank == 1 and step == 2:
                    batch[3, 1] = float("nan")
                model(batch).square().mean().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            norm = float(norm.full_tensor() if kind == "fsdp" else norm)
            with open(path + ".norms", "a") as file:
                file.write(f"{rank} {step} {norm}\\n")
            if norm == norm:
                optimizer.step()
    dist.destroy_process_group()

mp.start_processes(work, args=(sys.argv[1], sys.argv[2]), nprocs=2, start_method="fork")
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks(aggregator: Sink, run_script: Any, tmp_path: Any, kind: str) -> None:
    """The last pass of a window is reduced; a step that the guard skips is seen on all ranks."""
    result = run_script(RANKS, tmp_path / "group", kind)
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in (tmp_path / "group.norms").read_text().splitlines()]
    true = {(int(rank), int(step)): float(norm) for rank, step, norm in lines}
    found: dict[tuple[int, int], float] = {}
    for session, hello in aggregator.hellos.items():
        own = [e.record for e in aggregator.stored if e.session == session]
        manifests = {m.manifest_id: m for m in own if isinstance(m, Manifest)}
        for stats in (record for record in own if isinstance(record, Stats)):
            names = manifests[stats.manifest_id].names
            assert len(names) == 4
            found[hello.rank, stats.step] = math.hypot(*stats.columns["l2"].unpack())
            assert stats.labels["taken"] is (stats.step != 2)
            assert stats.labels["point"] == "backward"
    if kind == "fsdp":  # each rank has its own half
        found = {key: math.hypot(found[0, key[1]], found[1, key[1]]) for key in found}

    assert found == pytest.approx(true, rel=1e-5, nan_ok=True)
    assert len(found) == 8


def test_an_optimizer_in_the_backward_pass(aggregator: Sink) -> None:
    model = make()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step_now(parameter: Tensor) -> None:
        true.append(float(parameter.grad.norm()))  # type: ignore[union-attr]
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)
    watch = aggregator.attach(model, list(optimizers.values()))
    true: list[float] = []
    for step in range(3):
        loss_of(model, step).backward()
    sent = aggregator.stats(12)

    assert [(s.step, s.part) for s in sent] == [(n, part) for n in range(3) for part in range(4)]
    assert [total(aggregator, stats) for stats in sent] == pytest.approx(true, rel=1e-5)
    assert {stats.labels["point"] for stats in sent} == {"optimizer_step"}
    assert watch.stats()["faults"] == 0


def test_intervals_and_accumulation_together(aggregator: Sink) -> None:
    """`every`, `report_every` and accumulation together: the record is that of the due steps."""
    model = make()
    _, optimizer = aggregator.attach_sgd(model, lr=0.01, every=2, report_every=2)
    true = []
    for step in range(8):
        optimizer.zero_grad()
        for number in range(3):
            loss_of(model, 10 * step + number).backward()
        true.append(true_total(model))
        optimizer.step()
    sent = aggregator.stats(2)

    assert [stats.step for stats in sent] == [2, 6]
    found = [total(aggregator, stats) for stats in sent]
    assert found == pytest.approx([true[2], true[6]], rel=1e-5)
    assert [stats.scalars["collections"] for stats in sent] == [6.0, 6.0]


def test_a_gan_that_gives_its_steps(aggregator: Sink) -> None:
    """`collect(step=...)` before each of two optimizers is one step, with two parts."""
    torch.manual_seed(0)
    models = {"generator": nn.Linear(4, 4), "critic": nn.Linear(4, 1)}
    generator, critic = models.values()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models.values()]
    watch = aggregator.attach(models, optimizers)
    for step in range(100, 103):
        optimizers[1].zero_grad()
        critic(generator(torch.ones(2, 4)).detach()).sum().backward()
        watch.collect(loss=1.0, step=step)
        optimizers[1].step()
        optimizers[0].zero_grad()
        critic(generator(torch.ones(2, 4))).sum().backward()
        watch.collect(loss=2.0, step=step)
        optimizers[0].step()
    sent = aggregator.stats(6)

    expected = [(step, part) for step in range(100, 103) for part in (0, 1)]
    assert [(stats.step, stats.part) for stats in sent] == expected
    assert [stats.scalars["loss"] for stats in sent] == [1.0, 2.0] * 3
    assert watch.stats()["faults"] == 0
