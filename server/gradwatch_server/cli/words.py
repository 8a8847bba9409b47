"""The words for status and phase, and the mark before them: those that the page uses."""

from __future__ import annotations

from collections.abc import Sequence
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
    Status.HEALTHY: "All layers healthy.",
    Status.UNKNOWN: "No layer judged yet.",
}

_PHASES: Final[dict[str, str]] = {
    Phase.WAITING: "Attached; no step yet.",
    Phase.ENDED: "All ranks exited cleanly.",
    Phase.FAILED: "A rank ended with an exception.",
    Phase.LOST: "Ranks lost: no clean exit.",
}

ATTACH: Final = 'watch = gradwatch.attach(model, optimizer, run="my-run")'
"""The line that makes a training seen."""


def marked(word: str, rest: str = "") -> Text:
    """Return a status or severity with its mark, in its colour: shape carries it, too."""
    style = COLOURS.get(word, "yellow")  # type: ignore[call-overload]  # StrEnum keys equal strings
    return Text(f"{_MARKS.get(word, '○')} {printable(word + rest)}", style=style)


def status_text(status: str, phase: str, *, is_old: bool) -> Text:
    rest = f" · {phase}"
    return Text(printable(f"was {status}{rest}"), "dim") if is_old else marked(status, rest)


def ranks_by_state(ranks: Sequence[dict[str, Any]]) -> str:
    """Return which ranks are in which state: `all 8 alive`, `ranks 0 to 6 alive; rank 7 lost`."""
    ranks_of: dict[str, list[int]] = {}
    for rank in ranks:
        ranks_of.setdefault(rank["state"], []).append(rank["rank"])
    if len(ranks_of) == 1 and len(ranks) > 1:
        return f"all {len(ranks):,} {next(iter(ranks_of))}"
    return "; ".join(
        f"rank{'' if len(members) == 1 else 's'} {_ranges(members)} {state}"
        for state, members in ranks_of.items()
    )


def _ranges(numbers: list[int]) -> str:
    """Return numbers in order, those that follow each other as one range."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts
    )


def sentences(report: dict[str, Any]) -> list[str]:
    """Return why a run is as it is, the worst reason first; what its status means without any."""
    if report["reasons"]:
        return [str(reason) for reason in report["reasons"]]
    known = (_STATUSES.get(report["status"]), _PHASES.get(report["phase"]))
    return [" ".join(state for state in known if state)]
