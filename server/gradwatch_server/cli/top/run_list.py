"""All runs, those first that need somebody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Static

from gradwatch_server.cli.async_client import AsyncClient
from gradwatch_server.cli.client import query_of
from gradwatch_server.cli.sparkline import sparkline
from gradwatch_server.cli.top.cells import name_cell, number_cell
from gradwatch_server.cli.words import ATTACH, marked, status_text
from gradwatch_server.core.printable import printable
from gradwatch_wire.health import Severity, Status

COLUMNS: Final = ("status", "run", "step", "s/step", "norm", "last", "score", "ranks", "alerts")
NARROW_COLUMNS: Final = ("run", "step", "norm", "alerts")
"""Columns of a terminal with fewer than `WIDE` characters; the mark of the status is in `run`."""

WIDE: Final = 110
NARROW_REST: Final = 28
"""Characters of the narrow columns besides the name, at most."""

MAX_NAME: Final = 40
MIN_NAME: Final = 12
MAX_RUNS: Final = 200
RUN_POINTS: Final = 24


class RunsTable(DataTable[Text]):
    """A row for each run. The cursor stays on its run when the order changes; Enter opens it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "open")]

    def __init__(self) -> None:
        super().__init__(cursor_type="row", id="runs")
        self._drawn: dict[str, Sequence[Text]] = {}
        self._headers: Sequence[str] = ()

    @property
    def chosen(self) -> str | None:
        """The run that the cursor is on, None without any."""
        runs = list(self._drawn)
        return runs[self.cursor_row] if self.cursor_row < len(runs) else None

    def show_rows(self, headers: Sequence[str], wanted: dict[str, Sequence[Text]]) -> None:
        if wanted == self._drawn and headers == self._headers:
            return
        chosen, row, top = self.chosen, self.cursor_row, self.scroll_offset.y
        self.clear(columns=True)
        self.add_columns(*headers)
        for run, cells in wanted.items():
            self.add_row(*cells, key=run)
        runs = list(wanted)
        self.move_cursor(row=runs.index(chosen) if chosen in wanted else row, scroll=False)
        self.call_after_refresh(self.scroll_to, y=top, animate=False)
        self._drawn, self._headers = wanted, headers


class RunList(Vertical):
    """The table, and what stands in its place without any run."""

    filter_hint = "names of runs that have this in them"

    def __init__(self) -> None:
        super().__init__()
        self._table = RunsTable()
        self._empty = Static(id="empty")
        self._filter = ""
        self._runs: list[dict[str, Any]] | None = None

    def compose(self) -> ComposeResult:
        yield from (self._table, self._empty)

    def focus(self, scroll_visible: bool = True) -> RunList:
        self._table.focus(scroll_visible)
        return self

    async def read(self, client: AsyncClient, text: str) -> None:
        asked = (("q", text), ("sort", "worst"), ("spark", RUN_POINTS), ("limit", MAX_RUNS))
        self._runs = await client.get("/runs" + query_of(*asked))
        self._filter = text

    def draw(self, *, is_old: bool) -> str:
        if self._runs is None:
            return ""
        self._table.display = bool(self._runs)
        self._empty.display = not self._runs
        self._empty.update(self._nothing())
        cells: Callable[..., Sequence[Text]] = _cells
        headers: Sequence[str] = COLUMNS
        if self.size.width < WIDE:
            limit = max(self.size.width - NARROW_REST, MIN_NAME)
            cells, headers = partial(_narrow_cells, limit=limit), NARROW_COLUMNS
        rows = {row["run"]: cells(row, is_old=is_old) for row in self._runs}
        self._table.show_rows(headers, rows)
        return _summary(self._runs)

    def _nothing(self) -> Text:
        if self._filter:
            return Text(f"no run has {printable(self._filter)!r} in its name; Esc shows all")
        where = "No run yet. This aggregator takes records; in the training script:"
        return Text.assemble(where, ("\n\n    import gradwatch\n\n    " + ATTACH, "bold"))


def _cells(row: dict[str, Any], *, is_old: bool) -> list[Text]:
    return [
        status_text(row["status"], row["phase"], is_old=is_old),
        name_cell(row["run"], MAX_NAME),
        _step_cell(row),
        number_cell(row["step_time_s"]),
        sparkline(row["spark"], RUN_POINTS),
        _norm_cell(row),
        number_cell(row["score"]),
        Text(f"{row['ranks']}/{row['world']}", justify="right"),
        _alerts(row["alerts"]),
    ]


def _narrow_cells(row: dict[str, Any], *, is_old: bool, limit: int) -> list[Text]:
    mark = marked(row["status"]).split(" ")[0]
    if is_old:
        mark.stylize("dim")
    name = Text(" ").join((mark, name_cell(row["run"], limit - len(mark) - 1)))
    return [name, _step_cell(row), _norm_cell(row), _alerts(row["alerts"])]


def _step_cell(row: dict[str, Any]) -> Text:
    return Text("-" if row["step"] is None else f"{row['step']:,}", justify="right")


def _norm_cell(row: dict[str, Any]) -> Text:
    return number_cell(row["spark"][-1] if row["spark"] else None)


def _alerts(counts: dict[str, int]) -> Text:
    """Return how many fire of each severity: `1c 2w`."""
    return Text(" ").join(
        Text(
            f"{counts[severity]}{severity[0]}",
            style="bold red" if severity == Severity.CRITICAL else "",
        )
        for severity in reversed(Severity)
        if counts.get(severity)
    )


def _summary(rows: list[dict[str, Any]]) -> str:
    counts = Counter(row["status"] for row in rows)
    parts = [f"{counts[status]} {status}" for status in reversed(Status) if counts[status]]
    of = f"the worst {len(rows)}" if len(rows) == MAX_RUNS else str(len(rows))
    return f"{of} run{'' if len(rows) == 1 else 's'}{': ' if parts else ''}{', '.join(parts)}"
