"""Exports as CSV: one file per table, readable by anything."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gradwatch_server.cli.export.about import About
from gradwatch_server.cli.export.tables import Table, TableColumn, TableFormat


class CSV(TableFormat):
    """Texts in UTF-8 with a line of names, RFC 4180."""

    name = "csv"

    def __init__(self, directory: Path, about: About) -> None:
        super().__init__(directory, about)
        self._files: dict[str, TextIO] = {}

    def write(self, name: str, table: Table) -> None:
        if name not in self._files:
            path = self._directory / f"{name}.csv"
            self._files[name] = path.open("x", encoding="utf-8", newline="")
            csv.writer(self._files[name]).writerow(table)
        cells = [_texts(column) for column in table.values()]
        csv.writer(self._files[name]).writerows(zip(*cells, strict=True))

    def close(self) -> None:
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
