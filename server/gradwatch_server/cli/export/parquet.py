"""Exports as Parquet: a directory of parts per table, as pandas, polars and DuckDB read it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradwatch_server.cli.export.about import EXPORTED_AT, About
from gradwatch_server.cli.export.alert_table import alert_table
from gradwatch_server.cli.export.format import Sealed, library
from gradwatch_server.cli.export.page import Page
from gradwatch_server.cli.export.tables import ALERTS, Column, Table, empty_tables, tables_of
from gradwatch_server.core.frames.rows import FRAME_COLUMNS

METADATA_KEY: Final = b"gradwatch"
"""Key in the metadata of each file's schema, of what `About.facts` says, as JSON."""


class Parquet:
    """Files with their schema, compressed."""

    name: Final = "parquet"
    columns: Final = FRAME_COLUMNS

    def check(self) -> None:
        """Make sure that pyarrow is there."""
        library("pyarrow.parquet", "parquet")

    def open(self, directory: Path, about: About, sealed: Sealed) -> ParquetWriter:
        """Begin to write, or go on."""
        return ParquetWriter(directory, about, sealed)


class ParquetWriter:
    """Writes parts: a file that has no end yet cannot be read, so that sealing ends it."""

    def __init__(self, directory: Path, about: About, sealed: Sealed) -> None:
        self._directory, self._about = directory, about
        self._parts: dict[str, int] = dict(sealed.get("parts", {}))
        self._writers: dict[str, Any] = {}
        self._pyarrow = library("pyarrow", "parquet")
        for path in directory.glob("*/part-*.parquet"):
            if path not in {self._part(path.parent.name, n) for n in self._numbers(path)}:
                path.unlink()

    def _numbers(self, path: Path) -> range:
        return range(self._parts.get(path.parent.name, 0))

    def _part(self, table: str, number: int) -> Path:
        return self._directory / table / f"part-{number:05}.parquet"

    def add(self, page: Page) -> None:
        """Write a page, as a group of rows of each table."""
        for name, table in tables_of(page, self._about.layers, self._about.choice):
            self._write(name, table)

    def add_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write the alerts, and the tables of which there is no row."""
        for name, table in empty_tables(self._about.layers, self._about.choice):
            if name not in self._parts:
                self._write(name, table)
        self._write(ALERTS, alert_table(alerts))

    def _write(self, name: str, table: Table) -> None:
        pa, pq = self._pyarrow, library("pyarrow.parquet", "parquet")
        facts = {key: own for key, own in self._about.facts.items() if key != EXPORTED_AT}
        arrays = {key: _array(pa, column) for key, column in table.items()}
        made = pa.table(arrays).replace_schema_metadata({METADATA_KEY: json.dumps(facts)})
        if name not in self._writers:
            path = self._part(name, self._parts.get(name, 0))
            path.parent.mkdir(exist_ok=True)
            self._writers[name] = pq.ParquetWriter(path, made.schema, compression="zstd")
        self._writers[name].write_table(made)

    def seal(self) -> Sealed:
        """End the parts that are open."""
        for name in list(self._writers):
            self._writers.pop(name).close()
            number = self._parts.get(name, 0)
            _sync(self._part(name, number))
            self._parts[name] = number + 1
        return {"parts": dict(self._parts)}

    def close(self) -> None:
        """Let go of parts that were not sealed."""
        for writer in self._writers.values():
            with contextlib.suppress(OSError, ValueError):  # the disk may be full
                writer.close()
            writer.is_open = False  # else it would try again, and say so, when it is collected
        self._writers = {}


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _array(pa: Any, column: Column) -> Any:
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
