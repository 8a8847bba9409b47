"""Judges the recorded runs, prints the tables, and puts them into the page about alerts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.alerts import make, tables
from benchmarks.alerts.evaluation import GRADWATCH, RULE_SETS, Results, evaluate
from benchmarks.alerts.peers import PEERS
from benchmarks.alerts.recorded import Split
from benchmarks.documents import Section
from benchmarks.report import console, markdown, show

SECTION: Final = Section("alerts.md", "<!-- benchmark -->", "<!-- end of the benchmark -->")


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
        only: Workloads whose names contain this.
        quick: One seed of short runs, to see that it works.
        judge_only: Take the runs that are there.
        write: Put the tables into the page; it needs all workloads.
    """
    if not judge_only:
        make.run(directory=directory, only=only, quick=quick)
    began = time.perf_counter()
    results = collect(directory, only)
    for split in Split:
        print_split(split, {name: own.of(split) for name, own in results.items()})
    steps = sum(each.steps for each in results[GRADWATCH].healthy)
    console.print(f"judged {steps:,} healthy steps in {time.perf_counter() - began:.0f} s")
    if write:
        SECTION.write(render({name: own.of(Split.REPORT) for name, own in results.items()}))


def collect(directory: Path, only: str = "", processes: int = 2) -> dict[str, Results]:
    """Judge the runs in a directory, and return it by sets of rules."""
    whole = {name: Results() for name in RULE_SETS}
    for _, found in evaluate(directory, only=only, processes=processes):
        for name, own in found.items():
            whole[name].healthy += own.healthy
            whole[name].faults += own.faults
    return whole


def print_split(split: Split, results: Mapping[str, Results]) -> None:
    """Print the tables of one split."""
    ours = results[GRADWATCH]
    if not ours.healthy:
        return
    title = f"to {split.value}"
    console.print(f"{title}: {tables.about(ours)}", highlight=False)
    show(title, tables.FOUND_COLUMNS, tables.found(results), *tables.FOUND_NOTES)
    show(f"{title}, what they say", tables.SAID_COLUMNS, tables.said(results), *tables.SAID_NOTES)
    show(f"{title}, by fault", tables.kind_columns(results), tables.by_kind(results))


def render(results: Mapping[str, Results]) -> str:
    """Return the tables for the page."""
    ours = results[GRADWATCH]
    peers = [f"* {peer.name}: {peer.about}" for peer in PEERS.values()]
    return "\n".join(
        [
            "## How good they are",
            "",
            f"Made by `scripts/bench alerts --write`: {tables.about(ours)}.",
            "No rule was changed by what it did on these runs: others were for that. All rules",
            "are as they come.",
            "",
            markdown(tables.FOUND_COLUMNS, tables.found(results)),
            "",
            *(f"* {note}" for note in tables.FOUND_NOTES),
            "",
            markdown(tables.SAID_COLUMNS, tables.said(results)),
            "",
            *(f"* {note}" for note in tables.SAID_NOTES),
            "",
            "The others, each on the numbers that it would have had:",
            "",
            *peers,
            "",
            "Faults that were found, by kind:",
            "",
            markdown(tables.kind_columns(results), tables.by_kind(results)),
        ]
    )
