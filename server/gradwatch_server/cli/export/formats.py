"""The formats, a file for each. Each is listed in `FORMATS`, in the order of the help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gradwatch_server.cli.export.csv_files import CSV
from gradwatch_server.cli.export.format import Format
from gradwatch_server.cli.export.parquet import Parquet
from gradwatch_server.cli.export.tensorboard import TensorBoard

FORMATS: Final[Mapping[str, type[Format]]] = {
    each.name: each for each in (Parquet, CSV, TensorBoard)
}
"""Name to format."""
