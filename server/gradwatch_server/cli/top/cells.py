"""Cells of tables: texts already, so that no name is read as markup."""

from __future__ import annotations

from rich.text import Text

from gradwatch_server.cli.rendering import short
from gradwatch_server.core.printable import printable


def number_cell(value: float | str | None) -> Text:
    """Return a number in a few digits, a dash where there is none."""
    return Text("-" if value is None else printable(short(value)), justify="right")


def name_cell(name: str, limit: int) -> Text:
    """Return a name of at most *limit* characters, cut in the middle: ends tell layers apart."""
    text = printable(name)
    if len(text) > limit:
        tail = limit // 2
        text = f"{text[: limit - 1 - tail]}…{text[-tail:]}"
    return Text(text)
