"""Makes the set: trains every family with every seed, and forks each run into faults.

`scripts/bench alerts` says how long that took. Runs that are there already are left as they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import multiprocessing
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.alerts.families import FAMILIES, training_of
from benchmarks.alerts.faults import ANYWHERE, FAULTS, RANKS, SCALER
from benchmarks.alerts.faults.fault import Fault, Site, UnfitError
from benchmarks.alerts.gloo import RUNS as GLOO_RUNS
from benchmarks.alerts.gloo import record_gloo
from benchmarks.alerts.labels import label, part_of
from benchmarks.alerts.recorded import FloatArray, Recorded, Rows, Split
from benchmarks.alerts.recording import Job, LayerOrder, Meddler, Recorder, find_order
from benchmarks.alerts.store import SUFFIX, write
from benchmarks.alerts.training import Training
from gradwatch._layers.manifests import find_trained

DIRECTORY: Final = Path(".venv/alerts")
SEEDS: Final = 12
TUNED_SEEDS: Final = 6
"""Seeds of a family, and the first of them on which rules may be tuned."""

SEED_STRIDE: Final = 27
"""Distance of two seeds in the rotation of faults: a further family leaves the others' faults."""

FAULTS_PER_RUN: Final = 3
RARE_PER_RUN: Final = 1
"""Faults of a run; of those, too, that only fit trainings of several ranks, or with a scaler."""

LONG_STEPS: Final = 2000
LONG_FORK: Final = 256
"""Steps of a run that is replayed at every 64th step, too, and of its forks."""

PROCESSES: Final = 2
QUICK_STEPS: Final = 420
WORSE: Final = 1.5
"""Factor on the first losses at which a run without a fault has not learnt: it is left out."""


@dataclass(frozen=True, slots=True)
class Made:
    """Outcome of one run.

    Args:
        name: Of the healthy run.
        steps: Its steps.
        forks: Names of the variants of its forks.
        fork_steps: Steps of all of them.
        refused: Forks that were not written, with what in their numbers is not as labelled.
        seconds: How long it took.
    """

    name: str
    steps: int
    forks: tuple[str, ...]
    fork_steps: int
    refused: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class _Fork:
    variant: str
    fault: Fault
    rows: Rows


def split_of(training: Training) -> Split:
    """Return which part of the set a run belongs to."""
    if training.is_left_out:
        return Split.FAMILIES
    return Split.TUNE if training.seed < TUNED_SEEDS else Split.SEEDS


def record(
    training: Training,
    directory: Path,
    variants: Sequence[str],
    *,
    first: float = 0.1,
    size: float | None = None,
) -> Made:
    """Train a healthy run and its forks, and write them.

    Args:
        training: The training, not begun.
        directory: Where to.
        variants: Names of the faults it is forked into, where they make sense.
        first: Share of the run before which no fork begins.
        size: Of the faults that have one, drawn if None.
    """
    began = time.perf_counter()
    name = training.recipe.name
    random = np.random.default_rng([training.seed, zlib.crc32(training.name.encode()), 1])
    order = find_order(training)
    job = Job(training)
    recorder = Recorder(job, order.names)
    planned: dict[int, list[str]] = {}
    forks: list[_Fork] = []
    healthy = Meddler()
    for step in range(training.steps):
        if step == round(first * training.steps):
            site = Site(job, order.names, step, recorder.last_columns, random)
            planned = _plan(site, variants, training.steps)
        for variant in planned.get(step, ()):
            site = Site(job.fork(), order.names, step, recorder.last_columns, random)
            forks += _fork(variant, size, site, recorder, training.steps)
        recorder.step(step, healthy)
    rows = recorder.rows()
    if not _is_sound(rows.loss.mean(1), may_grow=training.loss_may_grow):
        refused = (f"{name}: the run without a fault diverged",)
        return Made(name, 0, (), 0, refused, time.perf_counter() - began)
    whole = _recorded(name, training, order, rows)
    written, failed = [], []
    for fork in forks:
        try:
            _write_fork(directory, whole, fork)
        except AssertionError as error:
            failed.append(f"{fork.variant}: {' '.join(str(error).split())}")
        else:
            written.append(fork)
    write(directory, whole)  # last: it says that the forks are there
    return Made(
        name=name,
        steps=len(rows),
        forks=tuple(fork.variant for fork in written),
        fork_steps=sum(len(fork.rows) for fork in written),
        refused=tuple(failed),
        seconds=time.perf_counter() - began,
    )


def _is_sound(loss: FloatArray, *, may_grow: bool) -> bool:
    tenth = max(1, len(loss) // 10)
    first, last = abs(float(loss[:tenth].mean())), float(loss[-tenth:].mean())
    return bool(np.isfinite(loss).all()) and (may_grow or last < WORSE * first)


def _plan(site: Site, variants: Sequence[str], steps: int) -> dict[int, list[str]]:
    """Choose the steps at which the run is forked, and into which of the faults that fit."""
    planned: dict[int, list[str]] = {}
    left = {"ranks": RARE_PER_RUN, "scaler": RARE_PER_RUN, "": FAULTS_PER_RUN}
    for variant in variants:
        try:
            fault = FAULTS[variant](site)
        except UnfitError:
            continue
        if left[fault.needs]:
            left[fault.needs] -= 1
            last = min(round(0.8 * steps), steps - _length(fault, steps))
            step = int(site.random.integers(site.step, max(site.step + 1, last)))
            planned.setdefault(step, []).append(variant)
    return planned


def _length(fault: Fault, steps: int) -> int:
    return max(fault.length, LONG_FORK) if steps >= LONG_STEPS else fault.length


def _fork(
    variant: str, size: float | None, site: Site, recorder: Recorder, steps: int
) -> Iterator[_Fork]:
    try:
        fault = FAULTS[variant](site, size)
    except UnfitError:
        return
    own = Recorder(site.job, site.layers, recorder.seconds, recorder.attempt)
    for step in range(site.step, min(site.step + _length(fault, steps), steps)):
        own.step(step, fault)
    yield _Fork(variant, fault, own.rows())


def _recorded(name: str, training: Training, order: LayerOrder, rows: Rows) -> Recorded:
    known = dict(training.named_parameters())
    return Recorded(
        name=name,
        family=training.name,
        seed=training.seed,
        world=training.world,
        split=split_of(training),
        layers=order.names,
        numel=tuple(known[layer].numel() for layer in order.names),
        dtypes=tuple(str(known[layer].dtype).removeprefix("torch.") for layer in order.names),
        is_ordered=order.is_ordered,
        rows=rows,
        forked_at=len(rows),
        about={"about": training.recipe.about},
        **optimizers_of(training, order.names),
    )


def optimizers_of(training: Training, layers: Sequence[str]) -> dict[str, Any]:
    """Return the class of the optimizer, and of each layer the decay of its second moment."""
    trained = find_trained(training.optimizers)
    known = dict(training.named_parameters())
    own = [trained.get(id(known[layer]), ("", math.nan)) for layer in layers]
    names = {name for name, _ in own if name}
    return {
        "optimizer": names.pop() if len(names) == 1 else "",
        "beta2": tuple(decay for _, decay in own),
    }


def _write_fork(directory: Path, parent: Recorded, fork: _Fork) -> None:
    first = fork.fault.step
    healthy = part_of(parent.rows, first, len(fork.rows))
    recorded = dataclasses.replace(
        parent,
        name=f"{parent.name}+{fork.variant}",
        rows=fork.rows,
        fault=label(fork.variant, fork.fault, healthy, fork.rows),
        parent=parent.name,
        forked_at=first,
    )
    write(directory, recorded)


def variants_of(number: int) -> list[str]:
    """Return all faults in the order in which they are tried on the run with this number."""
    return [
        name
        for some, per_run in ((ANYWHERE, FAULTS_PER_RUN), (RANKS, RARE_PER_RUN), (SCALER, 1))
        for name in _rotated(list(some), number * per_run)
    ]


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def runs(seeds: int = SEEDS, only: str = "") -> list[tuple[str, int, list[str]]]:
    """Return family, seed and faults of all runs of the set."""
    pairs = itertools.product(range(seeds), enumerate(FAMILIES))
    whole = [
        (family, seed, variants_of(seed * SEED_STRIDE + place)) for seed, (place, family) in pairs
    ]
    return [each for each in whole if only in each[0]]


def make(
    directory: Path,
    *,
    seeds: int = SEEDS,
    only: str = "",
    steps: int | None = None,
    processes: int = PROCESSES,
) -> Iterator[Made]:
    """Make what is missing of the set.

    Args:
        directory: Where to; it is made.
        seeds: Of each family.
        only: Families whose names contain this.
        steps: Of the healthy runs, drawn by default.
        processes: That work at the same time.

    Yields:
        What was made, run by run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    todo = [
        (directory, steps, *each)
        for each in runs(seeds, only)
        if not (directory / f"{each[0]}-{each[1]}{SUFFIX}").exists()
    ]
    if processes == 1:
        yield from map(_make_one, todo)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_make_one, todo)


def _make_one(work: tuple[Path, int | None, str, int, list[str]]) -> Made:
    directory, steps, family, seed, variants = work
    torch.set_num_threads(1)
    return record(training_of(family, seed, steps), directory, variants)


def make_gloo(directory: Path, only: str = "") -> Iterator[Made]:
    """Make what is missing of the runs with real processes, and yield it."""
    for recipe in GLOO_RUNS:
        name = f"gloo_{recipe.name}"
        if only not in name or (directory / f"{name}{SUFFIX}").exists():
            continue
        began = time.perf_counter()
        write(directory, record_gloo(recipe))
        yield Made(name, recipe.steps, (), 0, (), time.perf_counter() - began)


def run(*, directory: Path = DIRECTORY, only: str = "", quick: bool = False) -> None:
    """Make what is missing and print it.

    Args:
        directory: Where the runs are.
        only: Families whose names contain this.
        quick: One seed of short runs, to see that it works.
    """
    began = time.perf_counter()
    steps = forked = 0
    seeds, length = (1, QUICK_STEPS) if quick else (SEEDS, None)
    further = () if quick else make_gloo(directory, only)
    for made in itertools.chain(make(directory, seeds=seeds, only=only, steps=length), further):
        steps += made.steps
        forked += made.fork_steps
        print(f"{made.name}: {made.steps} steps, {made.seconds:.1f} s, {' '.join(made.forks)}")
        for refused in made.refused:
            print(f"  refused: {refused}")
    print(f"{steps} healthy steps, {forked} in forks, {time.perf_counter() - began:.0f} s")
