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
SPACINGS: Final = (4, 16, 64)
"""Spacings of steps at which gradwatch looks in a thinned replay."""

RULE_SETS: Final = (GRADWATCH, *PEERS, *map(str, SPACINGS))
"""Names of the sets of rules; that of a thinned replay is its spacing."""

PROCESSES: Final = 2

HISTORY_FRAMES: Final = 16
"""Frames that a thinned replay has before a fault that counts, and three while it lasts."""

_LASTING: Final = 8
"""Steps in a row after which a norm has doubled for good."""


@dataclass(slots=True)
class Results:
    """Findings of one set of rules about some runs.

    Args:
        healthy: Of each healthy run.
        faults: Of each fork.
    """

    healthy: list[Healthy] = field(default_factory=list)
    faults: list[Judged] = field(default_factory=list)

    def of(self, split: Split) -> Results:
        """Return those of one part of the set."""
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
        only: Families whose names contain this.
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
    results = {GRADWATCH: _results(parent, forks, *judge(parent, forks))}
    for every in SPACINGS:
        results[str(every)] = _thinned(parent, forks, every)
    series = Series.of(parent)
    of_fork = {fork.name: Series.of(fork) for fork in forks}
    for peer in PEERS.values():
        theirs = {own: peer.findings(each) for own, each in of_fork.items()}
        results[peer.name] = _results(parent, forks, peer.findings(series), theirs)
    return name, results


def _thinned(parent: Recorded, forks: Sequence[Recorded], every: int) -> Results:
    """Return the results of a replay of every n-th step, of the forks that it can show."""
    history = HISTORY_FRAMES * every
    if len(parent.rows) < 2 * history:
        return Results()
    shown = [
        fork
        for fork in forks
        if fork.forked_at >= history and len(fork.rows) - fork.forked_at >= 3 * every
    ]
    return _results(parent, shown, *judge(parent, shown, every), every)


def _results(
    parent: Recorded,
    forks: Sequence[Recorded],
    findings: Sequence[Finding],
    of_forks: dict[str, list[Finding]],
    every: int = 1,
) -> Results:
    findings = [each for each in findings if not is_true(each, parent, every)]
    healthy = Healthy(
        run=parent.name,
        family=parent.family,
        split=parent.split,
        steps=parent.healthy_steps,
        findings=tuple(findings),
    )
    faults = []
    for fork in forks:
        assert fork.fault is not None
        own = [each for each in of_forks[fork.name] if not is_true(each, fork, every)]
        doubled = doubled_step(parent, fork) if fork.fault.is_gradual else None
        faults.append(
            judged(
                fork.name,
                fork.split,
                fork.world,
                fork.fault,
                own,
                findings,
                len(fork.rows),
                doubled,
                every,
            )
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


def is_true(finding: Finding, recorded: Recorded, every: int = 1) -> bool:
    """Tell whether a finding is right that is about no fault: a run is killed, then resumed."""
    attempt = recorded.rows.attempt
    step = finding.origin_step
    if finding.rule != "liveness" or step is None or step + 1 >= len(attempt):
        return False
    return bool(attempt[step] != attempt[min(step + every, len(attempt) - 1)])


def by_split(results: Results) -> dict[Split, Results]:
    """Return the results of each part of the set that has any."""
    parts = {split: results.of(split) for split in Split}
    return {split: part for split, part in parts.items() if part.healthy}
