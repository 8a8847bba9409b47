"""Output of the commands for people: texts made harmless, statuses coloured, numbers short."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from gradwatch_server.core.printable import printable
from gradwatch_wire.health import Severity, Status

console: Final = Console()

COLOURS: Final = {
    Status.HEALTHY: "green",
    Status.UNKNOWN: "blue",
    Status.CRITICAL: "bold red",
    Severity.WARNING: "yellow",
}


def plain(value: object) -> Text:
    """Show any value as it is, without markup and with control characters escaped."""
    return Text(printable(str(value)))


def coloured(status: str) -> Text:
    """Show a status in its colour."""
    return Text(printable(status), style=COLOURS.get(status, "yellow"))  # type: ignore[call-overload]  # StrEnum keys equal strings


def moment(stamp: str) -> str:
    """Show a UTC time of the aggregator to the second: `2026-11-22T03:04:05Z`."""
    return f"{stamp[:19]}Z"


def short(number: float | str | None) -> str:
    """Show a number with four digits, and what is none, such as NaN, as it is."""
    return f"{number:.4g}" if isinstance(number, (int, float)) else str(number)
