"""Exports as CSV: one file per table, readable by anything."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from gradwatch_server.cli.export.about import About
from gradwatch_server.cli.export.alert_table import alert_table
from gradwatch_server.cli.export.page import Page
from gradwatch_server.cli.export.tables import ALERTS, Table, TableColumn, empty_tables, tables_of
from gradwatch_server.core.frames.rows import FRAME_COLUMNS


class CSV:
    """Texts in UTF-8 with a line of names, RFC 4180."""

    name: Final = "csv"
    columns: Final = FRAME_COLUMNS

    def check(self) -> None:
        """Nothing is needed but Python."""

    def open(self, directory: Path, about: About) -> CSVWriter:
        return CSVWriter(directory, about)


class CSVWriter:
    """Writes a file for each table."""

    def __init__(self, directory: Path, about: About) -> None:
        self._directory, self._about = directory, about
        self._files: dict[str, TextIO] = {}

    def add(self, page: Page) -> None:
        """Write a page."""
        for name, table in tables_of(page, self._about.layers, self._about.choice):
            self._write(name, table)

    def add_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write the alerts, and the tables of which there is no row."""
        for name, table in empty_tables(self._about.layers, self._about.choice):
            self._write(name, table)
        self._write(ALERTS, alert_table(alerts))

    def _write(self, name: str, table: Table) -> None:
        if name not in self._files:
            path = self._directory / f"{name}.csv"
            self._files[name] = path.open("x", encoding="utf-8", newline="")
            csv.writer(self._files[name]).writerow(table)
        cells = [_texts(column) for column in table.values()]
        csv.writer(self._files[name]).writerows(zip(*cells, strict=True))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def _texts(column: TableColumn) -> Iterator[Any]:
    """Return the cells of a column: nothing where there is no value, else a word or a number."""
    if column.words is not None:
        words = column.words
        return (words[place] for place in column.values.tolist())
    if column.values.dtype.kind == "M":
        texts = np.datetime_as_string(column.values, unit="us").tolist()
        return (f"{text}Z" for text in texts)
    cells = map(_cell, column.values.tolist())
    if column.known is None:
        return cells
    pairs = zip(cells, column.known.tolist(), strict=True)
    return (cell if known else "" for cell, known in pairs)


def _cell(value: Any) -> Any:
    """Return a value as pandas and polars read it: NaN, inf, true, else as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "NaN" if value != value else value  # noqa: PLR0124 - NaN
    return value
