"""Runs the loops, prints the table, and puts it into the page that explains them."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from benchmarks.documents import Section
from benchmarks.harness import chosen
from benchmarks.loops.cell import Cell, Verdict
from benchmarks.loops.harness import run_loops
from benchmarks.loops.registry import Loop, loops
from benchmarks.loops.verdict import COLUMNS, Row, judge
from benchmarks.report import console

SECTION: Final = Section.of("training-loops.md", "loops")
LIBRARIES: Final = ("torch", "lightning", "transformers", "accelerate")


def run(*, only: str = "", write: bool = False) -> None:
    """Run the loops, or those whose name contains *only*; exit 1 if a cell is wrong."""
    every = loops()
    rows: dict[str, tuple[Loop, Row]] = {}
    for outcome in run_loops([every[name] for name in chosen(every, only)]):
        row = judge(outcome)
        rows[outcome.loop.name] = outcome.loop, row
        cells = ", ".join(f"{column}: {_shown(row[column])}" for column in COLUMNS)
        console.print(f"{outcome.loop.name}: {cells}", markup=False, highlight=False)
        for column, cell in row.items():
            for wrong in cell.wrongs[:3]:
                console.print(f"    {column}: {wrong}", markup=False, highlight=False)
    text = render(rows)
    print(text)
    if write:
        SECTION.write(text)
    if any(cell.verdict is Verdict.WRONG for _, row in rows.values() for cell in row.values()):
        sys.exit(1)


def render(rows: dict[str, tuple[Loop, Row]]) -> str:
    notes: dict[str, int] = {}
    lines = [
        _heading(),
        "",
        "| loop | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    for name, (_, row) in rows.items():
        cells = [_with_note(row[column], notes) for column in COLUMNS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    footnotes = [f"{number}. {text}" for text, number in notes.items()]
    return "\n".join([*lines, *(["", *footnotes] if footnotes else [])])


def _heading() -> str:
    found = []
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            continue
    return (
        f"Made by `scripts/bench loops --write`: {', '.join(found)}, "
        f"Python {platform.python_version()}, {platform.system()} on {platform.machine()}."
    )


def _shown(cell: Cell) -> str:
    if cell.number is not None and cell.verdict is Verdict.RIGHT:
        return str(cell.number)
    return str(cell.verdict)


def _with_note(cell: Cell, notes: dict[str, int]) -> str:
    if cell.verdict is not Verdict.NULL:
        return _shown(cell)
    numbers = sorted({notes.setdefault(_plain(text), len(notes) + 1) for text in cell.nulls})
    return f"null ({', '.join(map(str, numbers))})"


def _plain(text: str) -> str:
    """Return a footnote: what gradwatch said, in one line, without what would be markup."""
    return text.replace("\n", "; ").replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")


def registered_in(page: str) -> list[list[str]]:
    """Return the cells of each row that a page has, without the heading."""
    _, _, rest = page.partition(SECTION.begin)
    body, _, _ = rest.partition(SECTION.end)
    table = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
