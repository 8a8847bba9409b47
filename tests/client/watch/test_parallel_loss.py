"""A loss that is a DTensor, as `loss_parallel` makes it: its value where this rank holds it."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_wire import Manifest, Stats
from tests.support.recording import Sink

pytestmark = pytest.mark.slow

# Two ranks of tensor parallelism; the last step gives a loss that no rank holds.
SCRIPT = """
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

import gradwatch


def work(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    split = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    model = parallelize_module(nn.Sequential(nn.Linear(4, 6)), mesh, {"0": split})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    losses = []
    with gradwatch.attach(model, optimizer, run="test") as watch:
        for give in (watch.collect, watch.annotate, watch.collect):
            optimizer.zero_grad()
            with loss_parallel():
                loss = nn.functional.cross_entropy(model(torch.ones(3, 4)), torch.arange(3))
                loss.backward()
            losses.append(float(loss.to_local()))
            unsummed = DTensor.from_local(torch.tensor(7.0), mesh, [Partial()])
            give(loss=unsummed if len(losses) == 3 else loss)
            optimizer.step()
        faults, last = watch.stats()["faults"], watch.stats()["last_error"]
    if rank == 0:
        print(losses[0], faults, last, sep="|")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


@pytest.mark.exhaustive
def test_a_distributed_loss_costs_no_record(
    aggregator: Sink, run_script: Any, tmp_path: Any
) -> None:
    """C40: a replicated one is taken; a partial one is left out, and one line says so."""
    result = run_script(SCRIPT, str(tmp_path / "group"))
    assert result.returncode == 0, result.stderr
    loss, faults, last = result.stdout.strip().split("|")

    assert faults == "1"
    assert "a DTensor with placements (Partial(sum),); pass loss.full_tensor()" in last
    for session in aggregator.hellos:
        records = [e.record for e in aggregator.stored if e.session == session]
        sent = [record for record in records if isinstance(record, Stats)]
        expected = [pytest.approx(float(loss)), pytest.approx(float(loss)), None]
        assert [stats.step for stats in sent] == [0, 1, 2]
        assert [stats.scalars.get("loss") for stats in sent] == expected
        manifests = [record for record in records if isinstance(record, Manifest)]
        assert {manifest.names for manifest in manifests} == {("0.weight", "0.bias")}
        assert manifests[0].order == "forward"
