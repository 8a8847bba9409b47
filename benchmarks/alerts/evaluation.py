"""All rules over the whole set: each healthy run with its forks is one piece of work."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.alerts.finding import Finding
from benchmarks.alerts.judge import judge
from benchmarks.alerts.peers import PEERS
from benchmarks.alerts.peers.series import Series
from benchmarks.alerts.recorded import Recorded, Split
from benchmarks.alerts.scoring import Healthy, Judged, judged
from benchmarks.alerts.store import Collection

GRADWATCH: Final = "gradwatch"
RULE_SETS: Final = (GRADWATCH, *PEERS)
PROCESSES: Final = 2

_LASTING: Final = 8
"""Steps in a row after which a norm has doubled for good."""


@dataclass(slots=True)
class Results:
    """What one set of rules said of some runs.

    Args:
        healthy: Of each healthy run.
        faults: Of each fork.
    """

    healthy: list[Healthy] = field(default_factory=list)
    faults: list[Judged] = field(default_factory=list)

    def of(self, split: Split) -> Results:
        """Return those of one split."""
        return Results(
            [each for each in self.healthy if each.split is split],
            [each for each in self.faults if each.split is split],
        )


def evaluate(
    directory: Path, *, only: str = "", processes: int = PROCESSES
) -> Iterator[tuple[str, dict[str, Results]]]:
    """Judge the runs in a directory.

    Args:
        directory: Where they are.
        only: Workloads whose names contain this.
        processes: That work at the same time.

    Yields:
        The name of a healthy run, and by sets of rules what they said of it and its forks.
    """
    parents = [name for name in Collection(directory).names if "+" not in name and only in name]
    work = partial(evaluate_run, directory)
    if processes == 1:
        yield from map(work, parents)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(work, parents)


def evaluate_run(directory: Path, name: str) -> tuple[str, dict[str, Results]]:
    """Judge a healthy run and its forks by all sets of rules."""
    runs = Collection(directory)
    parent = runs.read(name)
    forks = [runs.read(other) for other in runs.names if other.startswith(f"{name}+")]
    ours, of_forks = judge(parent, forks)
    results = {GRADWATCH: _results(parent, forks, ours, of_forks)}
    series = Series.of(parent)
    of_fork = {fork.name: Series.of(fork) for fork in forks}
    for peer in PEERS.values():
        theirs = {own: peer.findings(each) for own, each in of_fork.items()}
        results[peer.name] = _results(parent, forks, peer.findings(series), theirs)
    return name, results


def _results(
    parent: Recorded,
    forks: Sequence[Recorded],
    findings: Sequence[Finding],
    of_forks: dict[str, list[Finding]],
) -> Results:
    findings = [each for each in findings if not is_true(each, parent)]
    healthy = Healthy(
        run=parent.name,
        workload=parent.workload,
        split=parent.split,
        steps=parent.healthy_steps,
        findings=tuple(findings),
    )
    faults = []
    for fork in forks:
        assert fork.fault is not None
        own, last = of_forks[fork.name], len(fork.rows)
        doubled = doubled_step(parent, fork) if fork.fault.is_gradual else None
        faults.append(
            judged(fork.name, fork.split, fork.world, fork.fault, own, findings, last, doubled)
        )
    return Results([healthy], faults)


def doubled_step(parent: Recorded, fork: Recorded) -> int | None:
    """Return the first step from which on norms were twice those of the healthy run.

    Before it the fault has hardly done anything that norms show. It is the first of 8 steps in a
    row in each of which the total norm is; what is not finite has doubled.
    """
    first, last = fork.forked_at, min(len(fork.rows), len(parent.rows))
    if last - first < _LASTING:
        return None
    healthy, bad = (
        np.sqrt(np.nansum(each.rows.column("l2")[first:last] ** 2, axis=1))
        for each in (parent, fork)
    )
    doubled = ~(bad < 2.0 * healthy)
    in_a_row = np.convolve(doubled, np.ones(_LASTING), "valid") >= _LASTING
    found = np.flatnonzero(in_a_row)
    return first + int(found[0]) if len(found) else None


def is_true(finding: Finding, healthy: Recorded) -> bool:
    """Tell whether a finding about a healthy run is right: where it was resumed, it was killed."""
    attempt = healthy.rows.attempt
    step = finding.origin_step
    if finding.rule != "rank_lost" or step is None or step + 1 >= len(attempt):
        return False
    return bool(attempt[step] != attempt[step + 1])
