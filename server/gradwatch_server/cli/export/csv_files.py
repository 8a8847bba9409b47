"""Exports as CSV: one file per table, readable by anything."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from gradwatch_server.cli.export.about import About
from gradwatch_server.cli.export.alert_table import alert_table
from gradwatch_server.cli.export.format import Sealed
from gradwatch_server.cli.export.page import Page
from gradwatch_server.cli.export.tables import ALERTS, Column, Table, empty_tables, tables_of
from gradwatch_server.core.frames.rows import FRAME_COLUMNS


class CSV:
    """Texts in UTF-8 with a line of names, RFC 4180."""

    name: Final = "csv"
    columns: Final = FRAME_COLUMNS

    def check(self) -> None:
        """Nothing is needed but Python."""

    def open(self, directory: Path, about: About, sealed: Sealed) -> CSVWriter:
        """Begin to write, or go on."""
        return CSVWriter(directory, about, sealed)


class CSVWriter:
    """Appends to the files; what was written after they were sealed is cut off."""

    def __init__(self, directory: Path, about: About, sealed: Sealed) -> None:
        self._directory, self._about = directory, about
        self._files: dict[str, TextIO] = {}
        sizes: Mapping[str, int] = sealed.get("bytes", {})
        for path in directory.glob("*.csv"):
            if path.stem not in sizes:
                path.unlink()
        for name, size in sizes.items():
            self._files[name] = _appending(directory / f"{name}.csv", size)

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
            self._files[name] = _appending(self._directory / f"{name}.csv", 0)
            csv.writer(self._files[name]).writerow(table)
        cells = [_texts(column) for column in table.values()]
        csv.writer(self._files[name]).writerows(zip(*cells, strict=True))

    def seal(self) -> Sealed:
        """Bring what was written to the disk; return how long each file is."""
        sizes = {}
        for name, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            sizes[name] = os.fstat(file.fileno()).st_size
        return {"bytes": sizes}

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def _appending(path: Path, size: int) -> TextIO:
    file = path.open("a", encoding="utf-8", newline="")
    file.truncate(size)
    return file


def _texts(column: Column) -> Iterator[Any]:
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
