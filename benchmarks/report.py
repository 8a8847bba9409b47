"""Numbers with their spread, and one kind of table."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
import time
from collections.abc import Sequence

import psutil
from rich.console import Console
from rich.table import Table

console = Console(width=None if sys.stdout.isatty() else 110)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the values that at least *share* of them do not exceed."""
    ordered = sorted(values)
    rank = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def with_range(values: Sequence[float], form: str) -> str:
    """Return the median, and the range where there are several."""
    middle = format(statistics.median(values), form)
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):{form}}..{max(values):{form}})"


def show(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> None:
    """Print a table, and under it what a reader has to know."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(f"[bold]{name}[/]: {_machine()}", highlight=False)
    console.print(table)
    for note in notes:
        console.print(f"* {note}", style="dim", highlight=False)
    console.print()


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cores} cores ({platform.machine()}), load {psutil.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{time.strftime('%Y-%m-%d %H:%M')}"
    )
