"""A table whose rows have a key: what changes is drawn anew, the cursor stays on its row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import DataTable

from gradwatch_server.core.printable import printable

Row = tuple[str, Sequence[Text]]
"""The key of a row, and its cells."""


class LiveTable(DataTable[Text]):
    """Rows of cells that are texts already, so that no name is read as markup.

    Args:
        columns: Their names.
        name: What it is called in the screen.
        stays_on_top: Whether the cursor stays on the first row, where the worst is, as long as it
            is there; else it follows the row that it is on, as a key acts on that.
    """

    def __init__(self, *columns: str, name: str, stays_on_top: bool = False) -> None:
        super().__init__(id=name, cursor_type="row", zebra_stripes=False)
        self._columns_wanted = columns
        self._stays_on_top = stays_on_top
        self._drawn: dict[str, Sequence[Text]] = {}

    def on_mount(self) -> None:
        """Make the columns."""
        for column in self._columns_wanted:
            self.add_column(column, key=column)

    @property
    def chosen(self) -> str | None:
        """Key of the row that the cursor is on, None without any."""
        keys = list(self._drawn)
        return keys[self.cursor_row] if self.cursor_row < len(keys) else None

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show these rows, in this order."""
        wanted = dict(rows)
        if list(wanted) == list(self._drawn):
            for key, cells in wanted.items():
                self._change(key, cells)
        else:
            self._draw(wanted)
        self._drawn = wanted

    def _change(self, key: str, cells: Sequence[Text]) -> None:
        before = self._drawn[key]
        for column, old, new in zip(self._columns_wanted, before, cells, strict=True):
            if old != new or old.spans != new.spans or old.style != new.style:
                self.update_cell(key, column, new, update_width=True)

    def _draw(self, wanted: dict[str, Sequence[Text]]) -> None:
        chosen, row = self.chosen, self.cursor_row
        self.clear()
        for key, cells in wanted.items():
            self.add_row(*cells, key=key)
        keys = list(wanted)
        if chosen in wanted and not (self._stays_on_top and row == 0):
            row = keys.index(chosen)
        self.move_cursor(row=min(row, max(len(keys) - 1, 0)))


def name_cell(name: str, most: int) -> Text:
    """Return a name of at most *most* characters, cut in the middle: ends tell layers apart."""
    text = printable(name)
    if len(text) > most:
        tail = most // 2
        text = f"{text[: most - 1 - tail]}…{text[-tail:]}"
    return Text(text)
