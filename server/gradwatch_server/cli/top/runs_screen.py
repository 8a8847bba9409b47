"""All runs, those first that need somebody."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import DataTable, Static

from gradwatch_server.cli.async_client import AsyncClient
from gradwatch_server.cli.rendering import short
from gradwatch_server.cli.sparkline import sparkline
from gradwatch_server.cli.top.run_screen import RunScreen
from gradwatch_server.cli.top.screen import KEYS, LiveScreen
from gradwatch_server.cli.top.snapshot import MAX_RUNS, RUN_POINTS, read_runs
from gradwatch_server.cli.top.table import LiveTable, name_cell
from gradwatch_server.cli.words import ATTACH, status_text
from gradwatch_server.core.printable import printable
from gradwatch_wire.health import Severity, Status

COLUMNS: Final = ("status", "run", "step", "s/step", "norm", "last", "score", "ranks", "alerts")
MAX_NAME: Final = 40
MANY: Final = 50
MANY_S: Final = 5.0
"""How often the list is read with more runs than that: some of them always move."""


class RunsTable(LiveTable):
    """Opens what the cursor is on."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "open")]


class RunsScreen(LiveScreen):
    """The list; Enter opens a run."""

    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]
    filter_hint = "names of runs that have this in them"

    def parts(self) -> list[Widget]:
        """Return the table, and what stands in its place without any run."""
        return [RunsTable(*COLUMNS, name="runs"), Static(id="empty")]

    async def read(self, client: AsyncClient) -> dict[str, Any]:
        """Ask for the runs."""
        return await read_runs(client, self.filter_text)

    def draw(self, snapshot: dict[str, Any]) -> str:
        """Show them."""
        rows = snapshot["runs"]
        self.every_s = MANY_S if len(rows) > MANY else LiveScreen.every_s
        table, empty = self.query_one("#runs", LiveTable), self.query_one("#empty", Static)
        table.display = bool(rows)
        empty.display = not rows
        empty.update(self._empty())
        table.show_rows([(row["run"], _cells(row, is_old=self.is_old)) for row in rows])
        return _summary(rows)

    def focus_table(self) -> None:
        """Give the keys back to the table."""
        self.query_one("#runs", LiveTable).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the run of a row."""
        if event.row_key.value is not None:
            self.app.push_screen(RunScreen(event.row_key.value))

    def _empty(self) -> Text:
        if self.filter_text:
            return Text(f"no run has {printable(self.filter_text)!r} in its name; Esc shows all")
        where = "No run yet. This aggregator takes records; in the training script:"
        return Text.assemble(where, ("\n\n    import gradwatch\n\n    " + ATTACH, "bold"))


def _cells(row: dict[str, Any], *, is_old: bool) -> list[Text]:
    step = row["step"]
    return [
        status_text(row["status"], row["phase"], is_old=is_old),
        name_cell(row["run"], MAX_NAME),
        _right("-" if step is None else f"{step:,}"),
        _right(_number(row["step_time_s"])),
        sparkline(row["spark"], RUN_POINTS),
        _right(_number(row["spark"][-1] if row["spark"] else None)),
        _right(_number(row["score"])),
        _right(f"{row['ranks']}/{row['world']}"),
        _alerts(row["alerts"]),
    ]


def _alerts(counts: dict[str, int]) -> Text:
    """Return how many fire of each severity: `1c 2w`."""
    known = [(severity, counts.get(severity, 0)) for severity in reversed(Severity)]
    return Text(" ").join(
        Text(f"{count}{severity[0]}", style="bold red" if severity == Severity.CRITICAL else "")
        for severity, count in known
        if count
    )


def _summary(rows: list[dict[str, Any]]) -> str:
    counts = Counter(row["status"] for row in rows)
    parts = [f"{counts[status]} {status}" for status in reversed(Status) if counts[status]]
    of = f"the worst {len(rows)}" if len(rows) == MAX_RUNS else str(len(rows))
    return f"{of} run{'' if len(rows) == 1 else 's'}{': ' if parts else ''}{', '.join(parts)}"


def _number(value: float | str | None) -> str:
    return "-" if value is None else short(value)


def _right(text: str) -> Text:
    return Text(text, justify="right")
