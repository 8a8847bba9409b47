"""Judges the recorded runs, prints the tables, and puts them into the page about alerts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.alerts import make, tables
from benchmarks.alerts.evaluation import GRADWATCH, RULE_SETS, Results, evaluate
from benchmarks.alerts.finding import incidents
from benchmarks.alerts.peers import PEERS
from benchmarks.alerts.recorded import Split
from benchmarks.documents import Section
from benchmarks.report import console, show

SECTION: Final = Section("alerts.md", "<!-- benchmark -->", "<!-- end of the benchmark -->")


def run(
    *,
    directory: Path = make.DIRECTORY,
    only: str = "",
    quick: bool = False,
    judge_only: bool = False,
    write: bool = False,
    list_false: bool = False,
    list_missed: bool = False,
) -> None:
    """Make what is missing of the set, judge it and print what came of it.

    Args:
        directory: Where the runs are.
        only: Workloads whose names contain this.
        quick: One seed of short runs, to see that it works.
        judge_only: Take the runs that are there.
        write: Put the tables into the page; it needs all workloads.
        list_false: Print each false alarm on the runs to tune on.
        list_missed: Print each of their faults that was not named.
    """
    if write and (only or quick):
        sys.exit("--write needs the whole set: leave --only and --quick out")
    if not judge_only:
        make.run(directory=directory, only=only, quick=quick)
    began = time.perf_counter()
    results = collect(directory, only)
    for split in Split:
        print_split(split, {name: own.of(split) for name, own in results.items()})
    ours = results[GRADWATCH].of(Split.TUNE)
    if list_false:
        _print(false_alarm_lines(ours))
    if list_missed:
        _print(missed_lines(ours))
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
    show(f"{title}, by rule", tables.RULE_COLUMNS, tables.by_rule(ours), *tables.RULE_NOTES)


def false_alarm_lines(results: Results) -> Iterable[str]:
    """Yield what was said of healthy runs, warnings by their incidents."""
    yield "False alarms:"
    for run in results.healthy:
        for incident in incidents(run.findings):
            for each in incident:
                mark = "WARNING" if each.is_warning else "info   "
                yield f"  {mark} {run.run} told at {each.step}: {each.rule}: {each.message}"


def missed_lines(results: Results) -> Iterable[str]:
    """Yield the faults that no right rule warned of."""
    yield "Faults that no right rule warned of:"
    for each in sorted(results.faults, key=lambda each: (each.fault.kind, each.run)):
        if each.named or not each.fault.rules:
            continue
        fault = each.fault
        harm = "harmful" if fault.is_harmful else "harmless"
        said = ", ".join(
            f"{found.rule} {found.severity} +{found.step - fault.first_step}"
            for found in each.findings
        )
        where = f" in {fault.module}" if fault.module else ""
        what = f"{fault.kind} ({harm}) {each.run} from {fault.first_step}{where}"
        yield f"  {what}: {said or 'nothing'}"


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
            tables.markdown(tables.FOUND_COLUMNS, tables.found(results)),
            "",
            *(f"* {note}" for note in tables.FOUND_NOTES),
            "",
            tables.markdown(tables.SAID_COLUMNS, tables.said(results)),
            "",
            *(f"* {note}" for note in tables.SAID_NOTES),
            "",
            "The others, each on the numbers that it would have had:",
            "",
            *peers,
            "",
            "Faults that were found, by kind:",
            "",
            tables.markdown(tables.kind_columns(results), tables.by_kind(results)),
        ]
    )


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
