"""Exports as Parquet: a file for each table, as pandas, polars and DuckDB read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from gradwatch_server.cli.export.about import EXPORTED_AT, About
from gradwatch_server.cli.export.format import library
from gradwatch_server.cli.export.tables import Table, TableColumn, TableFormat

METADATA_KEY: Final = b"gradwatch"
"""Key in the metadata of each file's schema, of what `About.facts` says, as JSON."""


class Parquet(TableFormat):
    """Files with their schema, compressed; a group of rows for each page."""

    name = "parquet"
    needs = "pyarrow.parquet"

    def __init__(self, directory: Path, about: About) -> None:
        super().__init__(directory, about)
        self._writers: dict[str, Any] = {}
        self._pyarrow = library("pyarrow", self.name)

    def write(self, name: str, table: Table) -> None:
        pa, pq = self._pyarrow, library(self.needs, self.name)
        facts = {key: fact for key, fact in self._about.facts.items() if key != EXPORTED_AT}
        arrays = {key: _array(pa, column) for key, column in table.items()}
        made = pa.table(arrays).replace_schema_metadata({METADATA_KEY: json.dumps(facts)})
        if name not in self._writers:
            path = self._directory / f"{name}.parquet"
            self._writers[name] = pq.ParquetWriter(path, made.schema, compression="zstd")
        if made.num_rows:
            self._writers[name].write_table(made)

    def close(self) -> None:
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
