"""Exports as Parquet: a file for each table, as pandas, polars and DuckDB read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradwatch_server.cli.export.about import EXPORTED_AT, About
from gradwatch_server.cli.export.alert_table import alert_table
from gradwatch_server.cli.export.format import library
from gradwatch_server.cli.export.page import Page
from gradwatch_server.cli.export.tables import ALERTS, Table, TableColumn, empty_tables, tables_of
from gradwatch_server.core.frames.rows import FRAME_COLUMNS

METADATA_KEY: Final = b"gradwatch"
"""Key in the metadata of each file's schema, of what `About.facts` says, as JSON."""


class Parquet:
    """Files with their schema, compressed."""

    name: Final = "parquet"
    columns: Final = FRAME_COLUMNS

    def check(self) -> None:
        library("pyarrow.parquet", "parquet")

    def open(self, directory: Path, about: About) -> ParquetWriter:
        return ParquetWriter(directory, about)


class ParquetWriter:
    """Writes a file for each table, and a group of rows for each page."""

    def __init__(self, directory: Path, about: About) -> None:
        self._directory, self._about = directory, about
        self._writers: dict[str, Any] = {}
        self._pyarrow = library("pyarrow", "parquet")

    def add(self, page: Page) -> None:
        """Write a page."""
        for name, table in tables_of(page, self._about.layers, self._about.choice):
            self._write(name, table)

    def add_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write the alerts, and the tables of which there is no row."""
        for name, table in empty_tables(self._about.layers, self._about.choice):
            if name not in self._writers:
                self._write(name, table)
        self._write(ALERTS, alert_table(alerts))

    def _write(self, name: str, table: Table) -> None:
        pa, pq = self._pyarrow, library("pyarrow.parquet", "parquet")
        facts = {key: own for key, own in self._about.facts.items() if key != EXPORTED_AT}
        arrays = {key: _array(pa, column) for key, column in table.items()}
        made = pa.table(arrays).replace_schema_metadata({METADATA_KEY: json.dumps(facts)})
        if name not in self._writers:
            path = self._directory / f"{name}.parquet"
            self._writers[name] = pq.ParquetWriter(path, made.schema, compression="zstd")
        self._writers[name].write_table(made)

    def close(self) -> None:
        """Write the end of each file."""
        failed: OSError | None = None
        for writer in self._writers.values():
            try:
                writer.close()
            except OSError as error:  # the disk is full
                failed = error
            writer.is_open = False  # else it would try again, and say so, when it is collected
        if failed is not None:
            raise failed


def _array(pa: Any, column: TableColumn) -> Any:
    """Return a column for Arrow: texts by their places, times in UTC, nulls where none is known."""
    mask = None if column.known is None else ~column.known
    if column.words is not None:
        places = pa.array(column.values.astype("int32"))
        return pa.DictionaryArray.from_arrays(places, pa.array(column.words, pa.string()))
    if column.values.dtype.kind == "M":
        return pa.array(column.values).cast(pa.timestamp("ns", tz="UTC"))
    if column.values.dtype.kind == "O":
        return pa.array(column.values.tolist(), pa.string())
    return pa.array(column.values, mask=mask, from_pandas=False)
