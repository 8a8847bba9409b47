"""What the checks found, as JSON and as lines of text, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwatch_server.cli.doctor.check import Result
from gradwatch_server.cli.doctor.finding import Level, worst
from gradwatch_server.core.printable import printable
from gradwatch_wire import __version__

Sides = dict[str, list[Result]]
"""Side of the connection (`server`, `client`) to what was found there."""


def status_of(sides: Sides) -> Level:
    """Return the worst that was found: `ok`, `warning` or `error`."""
    return worst([result.finding.level for found in sides.values() for result in found])


def exit_code(sides: Sides) -> int:
    """Return 1 if something is wrong, else 0: warnings do not count."""
    return int(status_of(sides) is Level.ERROR)


def document(sides: Sides) -> dict[str, Any]:
    """Return all of it as plain data, whose keys stay as they are."""
    return {
        "version": __version__,
        "status": status_of(sides),
        "checks": [
            {
                "side": side,
                "name": result.check.name,
                "looks_at": result.check.looks_at,
                "finding": result.finding.level,
                "detail": result.finding.detail,
                "advice": result.finding.advice,
            }
            for side, found in sides.items()
            for result in found
        ],
    }


def lines(results: Sequence[Result]) -> list[str]:
    """Return a line for each check, and one for what to do."""
    width = max((len(result.check.name) for result in results), default=0)
    said: list[str] = []
    for result in results:
        name, finding = result.check.name.ljust(width), result.finding
        said.append(f"{finding.level:<7}  {name}  {printable(finding.detail)}")
        if finding.advice:
            said.append(f"{'':<7}  {'':<{width}}  -> {printable(finding.advice)}")
    return said


def summary(sides: Sides) -> str:
    """Return the last line: how many checks found what."""
    levels = [result.finding.level for found in sides.values() for result in found]
    counts = ", ".join(f"{levels.count(level)} {level}" for level in Level)
    verdict = {
        Level.OK: "nothing is wrong",
        Level.WARNING: "nothing is wrong, but see the warnings",
        Level.ERROR: "something is wrong",
    }
    return f"{verdict[status_of(sides)]} ({counts})"
