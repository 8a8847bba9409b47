"""Judges the recorded runs, prints the tables, and puts them into the page about alerts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.alerts import make, part, tables
from benchmarks.alerts.evaluation import GRADWATCH, RULE_SETS, Results, by_split, evaluate
from benchmarks.alerts.peers import PEERS
from benchmarks.alerts.recorded import Split
from benchmarks.documents import Section
from benchmarks.report import console, markdown, show

SECTION: Final = Section(
    "alerts-measured.md", "<!-- benchmark -->", "<!-- end of the benchmark -->"
)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the results.

    Args:
        title: What it is of.
        columns: Heads of the columns.
        rows: Cells.
        notes: A line each.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[tables.Row]
    notes: Sequence[str] = ()


def run(
    *,
    directory: Path = make.DIRECTORY,
    only: str = "",
    quick: bool = False,
    judge_only: bool = False,
    write: bool = False,
) -> None:
    """Make what is missing of the set, judge it and print what came of it.

    Args:
        directory: Where the runs are.
        only: Families whose names contain this.
        quick: One seed of short runs, to see that it works.
        judge_only: Take the runs that are there.
        write: Put the tables into the page, and the part for CI beside its test; it needs all
            families.
    """
    if not judge_only:
        make.run(directory=directory, only=only, quick=quick)
    began = time.perf_counter()
    results = collect(directory, only)
    for each in report(results):
        show(each.title, each.columns, each.rows, *each.notes)
    steps = sum(each.steps for each in results[GRADWATCH].healthy)
    console.print(f"judged {steps:,} healthy steps in {time.perf_counter() - began:.0f} s")
    if write:
        SECTION.write(render(results))
        part.pack(directory)


def collect(directory: Path, only: str = "", processes: int = 2) -> dict[str, Results]:
    """Judge the runs in a directory, and return it by sets of rules."""
    whole = {name: Results() for name in RULE_SETS}
    for _, found in evaluate(directory, only=only, processes=processes):
        for name, own in found.items():
            whole[name].healthy += own.healthy
            whole[name].faults += own.faults
    return whole


def report(results: Mapping[str, Results]) -> Iterator[Table]:
    ours = by_split(results[GRADWATCH])
    heads = ("gradwatch", *(tables.SPLITS[split] for split in ours))
    yield Table("Parts of the set", heads, tables.across(ours), tables.ACROSS_NOTES)
    yield Table(
        "Looked at more rarely",
        tables.THINNED_COLUMNS,
        tables.thinned(results),
        tables.THINNED_NOTES,
    )
    if Split.FAMILIES not in ours:
        return
    left_out = {name: result.of(Split.FAMILIES) for name, result in results.items()}
    peers = [f"{peer.name}: {peer.about}" for peer in PEERS.values()]
    notes = (*tables.FOUND_NOTES, *peers)
    yield Table("Left-out families", tables.FOUND_COLUMNS, tables.found(left_out), notes)
    rows = tables.by_family(left_out[GRADWATCH])
    yield Table("Each left-out family", tables.FAMILY_COLUMNS, rows)
    columns = tables.kind_columns(left_out)
    yield Table("Kinds of fault in left-out families", columns, tables.by_kind(left_out))


def render(results: Mapping[str, Results]) -> str:
    """Return the tables for the page."""
    lines = [
        "## How good they are",
        "",
        f"Made by `scripts/bench alerts --write`: {tables.about(results[GRADWATCH])}.",
        "Each training has random parameters, each fault a random size, place and step. Rules were",
        "chosen by the tuning part alone; of left-out families no rule has seen a run. All rules",
        "are as they come.",
    ]
    for each in report(results):
        lines += ["", f"### {each.title}", "", markdown(each.columns, each.rows)]
        lines += ["", *(f"* {note}" for note in each.notes)] if each.notes else []
    return "\n".join(lines)
