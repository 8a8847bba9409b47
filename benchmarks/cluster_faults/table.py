"""Three nodes, three NATS servers and PostgreSQL under real trainings: each fault, many times.

The trainings poison a gradient at a steady pace, so each has an alert every half second. Each has
two watches: one sends to the cluster, the other to a single process, whose alerts are those that
there are to be, with the same ids. A reader begins at each node, and goes on at the next one with
the last id that it has when its stream ends.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import pytest

from benchmarks.cluster_faults.faults import FAULTS, PAST_LEASE, Fault
from benchmarks.cluster_faults.machines import Machines, make_machines
from benchmarks.cluster_faults.measure import NUM_RUNS, Plan, Row, measure
from benchmarks.cluster_faults.training import PACE_S, RATE, Call
from benchmarks.documents import Section
from benchmarks.report import console, quantile, show

SECTION: Final = Section.of("cluster.md", "cluster-faults")

QUIET_S: Final = 8.0
MAX_SILENCE_S: Final = 10.0
MAX_MEDIAN_S: Final = 5.0

COUNTS: Final = (
    *("fault", "times", "produced", "stored", "lost", "unaccounted"),
    *("alerts", "missing", "doubled", "other"),
)
TIMES: Final = (
    *("fault", "no ack, s", "longest", "silence, s", "longest", "collect() p50, ms", "p99, ms"),
)


def run(
    *,
    quick: bool = False,
    times: int = 20,
    lease_s: float = 3.0,
    only: str = "",
    logs: Path | None = None,
    write: bool = False,
) -> None:
    """Measure and print; exit 1 if a record or an alert was lost, doubled or made up."""
    chosen = [fault for fault in FAULTS if only in fault.name]
    if not chosen:
        names = ", ".join(fault.name for fault in FAULTS)
        sys.exit(f"--only: no fault is called like {only!r}; there are: {names}")
    if write and (only or quick):
        sys.exit("--write needs all faults in full: leave --only and --quick out")
    with tempfile.TemporaryDirectory(prefix="gradwatch-bench-") as scratch:
        plan = Plan(
            lease_s, 1 if quick else times, 1.0 if quick else QUIET_S, logs or Path(scratch)
        )
        try:
            with make_machines() as machines:
                rows, notes = _measure(chosen, machines, plan)
        except pytest.skip.Exception as missing:  # of a program that is not installed
            sys.exit(str(missing))
    counts, waits = [_counts(row) for row in rows], [_waits(row) for row in rows]
    notes = [*_notes(lease_s), *notes]
    show("cluster-faults: what is lost", COUNTS, counts)
    show("cluster-faults: how long nothing comes", TIMES, waits, *notes)
    if write:
        SECTION.write(_markdown(counts, waits, notes))
    if any(wrongs_of(row) for row in rows):
        sys.exit(1)


def _measure(
    chosen: Sequence[Fault], machines: Machines, plan: Plan
) -> tuple[list[Row], list[str]]:
    rows, notes = [], []
    for fault in chosen:
        if fault.needs_cut and not machines.can_be_cut:
            notes.append(f"{fault.name}: left out, as it takes root and network namespaces.")
            continue
        row = measure(fault, machines, plan)
        wrongs = wrongs_of(row)
        console.print(f"{fault.name}: {'; '.join(wrongs) or 'nothing wrong'}", markup=False)
        notes += [f"Wrong, {fault.name}: {wrong}." for wrong in wrongs]
        rows.append(row)
    return rows, notes


def wrongs_of(row: Row) -> list[str]:
    """Return what must not be, however long it took."""
    found = list(row.wrongs)
    if row.unaccounted:
        found.append(f"{row.unaccounted} records neither stored nor declared as lost")
    for number, own in enumerate(row.differences):
        for what in ("missing", "doubled", "other"):
            if keys := getattr(own, what):
                shown = ", ".join(f"{alert} {state}" for alert, state in keys[:3])
                found.append(f"reader {number}: {len(keys)} alerts {what}, such as {shown}")
    return found


def _counts(row: Row) -> list[str]:
    most = [
        max(len(getattr(own, what)) for own in row.differences)
        for what in ("missing", "doubled", "other")
    ]
    return [
        *(row.name, str(row.times)),
        *(f"{count:,}" for count in (row.produced, row.stored, row.lost, row.unaccounted)),
        f"{max(own.expected for own in row.differences):,}",
        *map(str, most),
    ]


def _waits(row: Row) -> list[str]:
    return [
        row.name,
        *_median_and_max(row.pauses_s),
        *_median_and_max(row.silences_s),
        *(_ratios(row.during, row.quiet, share) for share in (0.5, 0.99)),
    ]


def _median_and_max(values_s: Sequence[float]) -> list[str]:
    return [f"{median(values_s):.1f}", f"{max(values_s):.1f}"]


def _ratios(during: Sequence[Call], quiet: Sequence[Call], share: float) -> str:
    """Return the time of `collect()`, as a ratio to the quiet time too, and that of the single."""
    ours = quantile([call.cluster_ms for call in during], share)
    ratio = ours / quantile([call.cluster_ms for call in quiet], share)
    theirs = quantile([call.single_ms for call in during], share)
    ratio_single = theirs / quantile([call.single_ms for call in quiet], share)
    return f"{ours:.2f} ({ratio:.1f}; {ratio_single:.1f})"


def _notes(lease_s: float) -> list[str]:
    about = (
        f"{NUM_RUNS} trainings, each {RATE:g} records/s and an alert every {PACE_S:g} s, "
        f"connected to a node each; `cluster_lease_s` {lease_s:g}. produced: records that the "
        "clients numbered; stored and lost: as the cluster counts them. alerts: those that the "
        "single process told, firing and resolved; missing, doubled, other: of the reader of "
        "whom it is most."
    )
    waits = (
        "no ack: longest time in which nothing of a run was acknowledged, median and longest of "
        "all faults. silence: longest time in which a reader got no alert of a run, less the "
        f"{PACE_S:g} s that lie between two. Both are of the run and the reader that waited "
        f"longest. Aims: median {MAX_MEDIAN_S:g} s, longest {MAX_SILENCE_S:g} s."
    )
    calls = (
        "collect(): median and p99 of the call while a fault lasts; in brackets as a ratio to the "
        "quiet time before, and the same ratio of the watch beside it, that of the single "
        "process, which no fault touches."
    )
    cut = (
        "network cut: between the machines of two nodes, each of which has a NATS server too, for "
        f"{PAST_LEASE:g} leases at least. An owner is paused as long."
    )
    signals = (
        "PostgreSQL is stopped by SIGQUIT, which leaves its files as a crash does, and none of "
        "its processes. All others are killed by SIGKILL."
    )
    return [about, waits, calls, cut, signals]


def _markdown(
    counts: Sequence[Sequence[str]], waits: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    heading = (
        f"Made by `scripts/bench cluster-faults --write`: all of it on one machine with "
        f"{psutil.cpu_count()} cores ({platform.machine()}), load {psutil.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}."
    )
    notes = [f"* {note}" for note in notes]
    return "\n".join([heading, "", *_rows(COUNTS, counts), "", *_rows(TIMES, waits), "", *notes])


def _rows(columns: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ("---", *("---:",) * (len(columns) - 1)), *table]
    return [f"| {' | '.join(line)} |" for line in lines]
