"""The words for status and phase, and the mark before them: those that the page uses."""

from __future__ import annotations

from typing import Any, Final

from rich.text import Text

from gradwatch_server.cli.rendering import COLOURS
from gradwatch_server.core.printable import printable
from gradwatch_wire.health import Phase, Severity, Status

_MARKS: Final[dict[str, str]] = {
    Status.CRITICAL: "✖",
    Status.STALLED: "▮▮",
    Status.INCOMPLETE: "◌",
    Status.DEGRADED: "◐",
    Status.HEALTHY: "●",
    Status.UNKNOWN: "○",
    Severity.WARNING: "◐",
    Severity.INFO: "○",
}

_STATUSES: Final[dict[str, str]] = {
    Status.CRITICAL: "A critical alert is firing.",
    Status.STALLED: "No step for longer than is usual.",
    Status.INCOMPLETE: "Ranks or records are missing: it may be worse than it looks.",
    Status.DEGRADED: "A warning is firing.",
    Status.HEALTHY: "Every layer was judged; nothing is wrong now.",
    Status.UNKNOWN: "Nothing was judged yet.",
}

_PHASES: Final[dict[str, str]] = {
    Phase.WAITING: "Attached; no step yet.",
    Phase.ENDED: "Every rank said goodbye.",
    Phase.FAILED: "A rank ended with an exception.",
    Phase.LOST: "Ranks went without a goodbye.",
}

ATTACH: Final = 'watch = gradwatch.attach(model, optimizer, run="my-run")'
"""The line that makes a training seen."""


def marked(word: str, rest: str = "") -> Text:
    """Return a status or severity with its mark, in its colour: shape carries it, too.

    Args:
        word: The status or severity.
        rest: What stands behind it.
    """
    style = COLOURS.get(word, "yellow")  # type: ignore[call-overload]  # StrEnum keys equal strings
    return Text(f"{_MARKS.get(word, '○')} {printable(word + rest)}", style=style)


def status_text(status: str, phase: str, *, is_old: bool) -> Text:
    """Return status and phase in the one phrase for them; of what is old only that it was so."""
    rest = f" · {phase}"
    return Text(printable(f"was {status}{rest}"), "dim") if is_old else marked(status, rest)


def sentences(report: dict[str, Any]) -> list[str]:
    """Return why a run is as it is, the worst reason first; what its status means without any."""
    if report["reasons"]:
        return [str(reason) for reason in report["reasons"]]
    known = (_STATUSES.get(report["status"]), _PHASES.get(report["phase"]))
    return [" ".join(own for own in known if own)]
