"""`gradwatch runs`: lists the runs."""

from __future__ import annotations

import json
from typing import Any, Final

from rich.table import Table

from gradwatch_server.cli.client import get
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import coloured, plain, short, show_table

COLUMNS: Final = ("run", "phase", "status", "step", "ranks", "score", "firing", "stored", "lost")
LEAST: Final = ("stored", "score", "lost", "ranks", "phase", "firing")
"""Columns that a narrow terminal leaves out, the first one first."""


def runs(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the runs."""
    items = get(url, "/runs")
    if as_json:
        for item in items:
            print(json.dumps(item))
    elif items:
        show_table(_table(items), least=LEAST)
    else:
        print("no runs yet")


def _table(items: list[dict[str, Any]]) -> Table:
    table = Table(COLUMNS[0], box=None)
    for column in COLUMNS[1:]:
        table.add_column(column, no_wrap=True)
    for item in items:
        table.add_row(
            plain(item["run"]),
            plain(item["phase"]),
            coloured(item["status"]),
            str(item["step"]),
            f"{item['ranks']}/{item['world']}",
            short(item["score"]),
            str(item["firing"]),
            str(item["records"]["stored"]),
            str(item["records"]["lost"]),
        )
    return table
