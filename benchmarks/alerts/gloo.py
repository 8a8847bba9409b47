"""Runs with real processes: DDP over gloo, each rank attached, and its records kept as they came.

They are healthy, and show that ranks simulated in one process have the numbers of real ones.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwatch
from benchmarks.alerts.families import FAMILIES
from benchmarks.alerts.recipe import Recipe
from benchmarks.alerts.recorded import FloatArray, Recorded, Rows, Split
from benchmarks.harness import Pipe, workers
from gradwatch_wire import Envelope, Manifest, Stats
from gradwatch_wire.columns import LOCAL_L2, MEASURED_COLUMNS, UPDATE_COLUMNS
from gradwatch_wire.names import Label, LayerOrder, Scalar
from tests.support.recording import Sink

RUNS: Final = (
    Recipe(family="regression", world=4, steps=600, schedule="step", optimizer="momentum"),
    Recipe(family="regression", seed=1, world=2, steps=600, optimizer="adam"),
    Recipe(family="gpt", world=2, steps=600, width=16, batch=8, warm_up=0.05, clip=1.0),
)
"""Recipes of those that are trained so, too."""

_CLOSED: Final = "closed"


@dataclass(frozen=True, slots=True)
class _Rank:
    """A process of the group that meets at the file `meeting`."""

    recipe: Recipe
    rank: int
    meeting: Path
    endpoint: str


def record_gloo(recipe: Recipe) -> Recorded:
    """Train with a process per rank; the name in the set begins with `gloo_`."""
    # The group must find itself on a machine without a network, too.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    aggregator = Sink()
    aggregator.start()
    try:
        with tempfile.TemporaryDirectory(prefix="gradwatch-bench-") as scratch:
            meeting = Path(scratch) / "group"
            jobs = [
                _Rank(recipe, rank, meeting, aggregator.endpoint) for rank in range(recipe.world)
            ]
            with workers(_train, jobs) as ranks:
                assert [each.receive() for each in ranks] == [_CLOSED] * len(ranks)
    finally:
        aggregator.stop()
    by_rank = _by_rank(aggregator)
    manifest = next(
        each.record for each in reversed(by_rank[0]) if isinstance(each.record, Manifest)
    )
    return Recorded(
        name=f"gloo_{recipe.name}",
        family=f"gloo_{recipe.family}",
        seed=recipe.seed,
        world=recipe.world,
        split=Split.SEEDS,
        layers=manifest.names,
        numel=tuple(int(count) for count in manifest.numel.unpack()),
        dtypes=manifest.dtypes,
        is_ordered=manifest.order == LayerOrder.FORWARD,
        rows=_rows([_statistics(own, manifest.names) for own in by_rank]),
        forked_at=recipe.steps,
        about={"about": f"{recipe.about}; real processes, gloo"},
    )


def _train(job: _Rank, pipe: Pipe) -> None:
    """Train one rank as a user's script would."""
    torch.set_num_threads(1)
    training = FAMILIES[job.recipe.family](job.recipe)
    dist.init_process_group(
        "gloo", f"file://{job.meeting}", rank=job.rank, world_size=training.world
    )
    parameters = training.named_parameters()
    training.model = DistributedDataParallel(training.model)
    watch = gradwatch.attach(
        training.model,
        training.optimizers,
        run="gloo",
        endpoint=job.endpoint,
        every=1,
        columns=MEASURED_COLUMNS,
        local=True,
    )
    for step in range(training.steps):
        training.set_rate(step)
        training.model.zero_grad()
        loss, size = training.micro_loss(step, job.rank, 0)
        loss.backward()
        watch.collect(loss=loss, batch_size=size)
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_([each for _, each in parameters], training.clip)
        for optimizer in training.optimizers:
            optimizer.step()
    watch.close()
    assert watch.stats()["faults"] == 0, watch.stats()
    pipe.send(_CLOSED)


def _by_rank(aggregator: Sink) -> list[list[Envelope]]:
    sessions = sorted(aggregator.hellos.items(), key=lambda each: each[1].rank)
    return [
        [each for each in aggregator.stored if each.session == session] for session, _ in sessions
    ]


def _statistics(own: Sequence[Envelope], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what each record of a rank says, its layers as in *names*."""
    manifests: dict[int, Manifest] = {}
    found = []
    for envelope in own:
        match envelope.record:
            case Manifest() as manifest:
                manifests[manifest.manifest_id] = manifest
            case Stats() as stats:
                declared = manifests[stats.manifest_id].names
                columns = {
                    name: dict(zip(declared, column.unpack(), strict=True))
                    for name, column in stats.columns.items()
                }
                found.append(
                    {
                        "columns": np.stack(
                            [_column(columns.get(name), names) for name in MEASURED_COLUMNS]
                        ),
                        "local": _column(columns[LOCAL_L2], names),
                        "present": [name in declared for name in names],
                        "scalars": stats.scalars,
                        "taken": stats.labels[Label.TAKEN],
                        "updates": [
                            _column(columns[name], names) if name in columns else None
                            for name in UPDATE_COLUMNS
                        ],
                        "time_ns": envelope.time_ns,
                    }
                )
    return found


def _column(values: Mapping[str, float] | None, names: Sequence[str]) -> FloatArray:
    """Return one column; one that is not in a record counts what is not there."""
    return np.array([0.0 if values is None else values[name] for name in names])


def _rows(by_rank: Sequence[Sequence[Mapping[str, Any]]]) -> Rows:
    first, steps = by_rank[0], len(by_rank[0])
    world, layers = len(by_rank), len(first[0]["present"])
    others = [
        (step, rank)
        for step in range(steps)
        for rank in range(1, world)
        if not np.array_equal(by_rank[rank][step]["columns"], first[step]["columns"])
    ]
    assert not others, f"reduced gradients differ at {others[:3]}"

    def scalar(name: Scalar) -> FloatArray:
        return np.array([[own[step]["scalars"][name] for own in by_rank] for step in range(steps)])

    looks = [step for step, row in enumerate(first) if row["updates"][0] is not None]
    nothing = np.empty((0, len(MEASURED_COLUMNS), layers))
    times = np.array([row["time_ns"] for row in first])
    return Rows(
        columns=np.array([row["columns"] for row in first]),
        own=nothing,
        own_at=np.empty((0, 2), dtype=np.int64),
        present=np.array([row["present"] for row in first]),
        trainable=np.ones((steps, layers), dtype=np.bool_),
        loss=scalar(Scalar.LOSS),
        batch_size=scalar(Scalar.BATCH_SIZE),
        lr=scalar(Scalar.LR)[:, 0],
        loss_scale=np.full(steps, np.nan),
        taken=np.array([row["taken"] for row in first]),
        local_l2=np.array([[own[step]["local"] for own in by_rank] for step in range(steps)]),
        earlier_l2=np.empty((steps, 0, layers)),
        seconds=(times - times[0]) / 1e9,
        attempt=np.zeros(steps, dtype=np.int64),
        weights=np.empty((0, world, 3, layers)),
        weights_at=np.empty(0, dtype=np.int64),
        updates=np.array(
            [[own[step]["updates"] for own in by_rank] for step in looks], dtype=np.float64
        ).reshape(-1, world, len(UPDATE_COLUMNS), layers),
        updates_at=np.array(looks, dtype=np.int64),
        carried=np.zeros(steps, dtype=np.bool_),
    )
