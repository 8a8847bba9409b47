"""Output of the commands for people: texts made harmless, statuses coloured, numbers short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gradwatch_server.core.printable import printable
from gradwatch_wire.health import Severity, Status

console: Final = Console()

PIPE_WIDTH: Final = 100_000
"""Characters of a line that nobody sees as one: more than any table is wide."""

COLOURS: Final = {
    Status.HEALTHY: "green",
    Status.UNKNOWN: "blue",
    Status.CRITICAL: "bold red",
    Severity.WARNING: "yellow",
}


def show_table(table: Table, least: Sequence[str] = ()) -> None:
    """Print a table: all of it into a pipe; on a terminal without the columns that find no room.

    Args:
        table: Its first column has the names, which are never cut.
    """
    if not console.is_terminal:
        Console(width=PIPE_WIDTH).print(table)
        return
    room = console.options.update(width=PIPE_WIDTH)
    for header in least:
        if Measurement.get(console, room, table).maximum <= console.width:
            break
        table.columns = [each for each in table.columns if each.header != header]
    table.columns[0].overflow = "fold"
    console.print(table)


def plain(value: object) -> Text:
    """Show any value as it is, without markup and with control characters escaped."""
    return Text(printable(str(value)))


def coloured(status: str) -> Text:
    return Text(printable(status), style=COLOURS.get(status, "yellow"))  # type: ignore[call-overload]  # StrEnum keys equal strings


def moment(stamp: str) -> str:
    """Show a UTC time of the aggregator to the second: `2026-11-22T03:04:05Z`."""
    return f"{stamp[:19]}Z"


def short(number: float | str | None) -> str:
    """Show a number with four digits, and what is none, such as NaN, as it is."""
    return f"{number:.4g}" if isinstance(number, (int, float)) else str(number)
