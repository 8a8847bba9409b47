"""Numbers with their spread, and one kind of table."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import time
from collections.abc import Iterable, Sequence

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.documents import Section
from benchmarks.spread import quantile, ratios, with_range

__all__ = ["console", "markdown", "quantile", "ratios", "show", "with_range"]

console = Console(width=None if sys.stdout.isatty() else 110)


def show(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *notes: str,
    section: Section | None = None,
) -> None:
    """Print a table, and under it what a reader has to know.

    Args:
        name: Of the benchmark, or of the part of it.
        columns: Heads of the columns.
        rows: Cells.
        *notes: A line each.
        section: The part of a page that is written with the same.
    """
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(f"[bold]{name}[/]: {machine()}", highlight=False)
    console.print(table)
    for note in notes:
        console.print(f"* {note}", style="dim", highlight=False)
    console.print()
    if section is not None:
        heading = f"Made by `scripts/bench {name} --write`: {machine()}."
        listed = [f"* {note}" for note in notes]
        section.write("\n".join([heading, "", markdown(columns, rows), "", *listed]))


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for a page."""
    lines = [columns, ["---", *("---:" for _ in columns[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Return what was measured on, how busy it is, and when."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cores} cores ({platform.machine()}), load {psutil.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{time.strftime('%Y-%m-%d %H:%M')}"
    )
