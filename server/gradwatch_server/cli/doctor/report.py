"""A check and its finding; the run of all checks; findings as JSON and as lines of text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import __version__

DEADLINE_S: Final = 20.0
"""Longest time of a check: a name server or a network file system may hang for ever."""

Subject = TypeVar("Subject")


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # gradwatch works, or may; somebody should look
    ERROR = "error"  # gradwatch does not work
    SKIPPED = "skipped"  # there is nothing to look at


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        advice: What to do, empty if nothing is to be done.
        blocks_others: Whether checks that need this one have nothing to look at.
    """

    level: Level
    detail: str
    advice: str = ""
    blocks_others: bool = False


def ok(detail: str) -> Finding:
    return Finding(Level.OK, detail)


def warning(detail: str, advice: str, *, blocks_others: bool = False) -> Finding:
    return Finding(Level.WARNING, detail, advice, blocks_others)


def error(detail: str, advice: str, *, blocks_others: bool = True) -> Finding:
    return Finding(Level.ERROR, detail, advice, blocks_others)


def skipped(reason: str) -> Finding:
    return Finding(Level.SKIPPED, reason)


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject]):
    """One thing to look at, as docs/doctor.md lists it."""

    name: str
    looks_at: str
    run: Callable[[Subject], Finding]
    needs: tuple[str, ...] = ()


Sides = dict[str, list[tuple[Check[Any], Finding]]]
"""Side of the connection (`server`, `client`) to what its checks found."""


def run_checks(
    checks: Iterable[Check[Subject]], subject: Subject, deadline_s: float = DEADLINE_S
) -> Iterator[tuple[Check[Subject], Finding]]:
    """Run checks in order; yield each with what it found. Nothing is raised."""
    failed: set[str] = set()
    for check in checks:
        missing = [name for name in check.needs if name in failed]
        if missing:
            finding = skipped(f"needs what {missing[0]!r} looks at")
        else:
            finding = _run(check, subject, deadline_s)
        if finding.blocks_others or missing:
            failed.add(check.name)
        yield check, finding


def _run(check: Check[Subject], subject: Subject, deadline_s: float) -> Finding:
    """Run one check in a thread, which is left behind if it hangs."""
    findings: list[Finding] = []

    def run() -> None:
        try:
            findings.append(check.run(subject))
        except (GradwatchError, OSError) as fault:
            what, _, advice = str(fault).partition("; ")
            findings.append(error(what, advice or "see what it says"))
        except Exception as fault:  # noqa: BLE001 - one that fails must not end the others
            text = f"the check itself failed: {type(fault).__name__}: {fault}"
            findings.append(error(text, "tell its authors, with this line"))

    thread = threading.Thread(target=run, name=f"gradwatch-doctor-{check.name}", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if findings:
        return findings[0]
    return error(f"no answer from the system within {deadline_s:g} s", "look after what hangs")


def _levels(sides: Sides) -> list[Level]:
    return [finding.level for results in sides.values() for _, finding in results]


def status_of(sides: Sides) -> Level:
    """Return the worst level: `ok`, `warning` or `error`."""
    levels = _levels(sides)
    return next((each for each in (Level.ERROR, Level.WARNING) if each in levels), Level.OK)


def exit_code(sides: Sides) -> int:
    """Return 1 if something is wrong, else 0: warnings do not count."""
    return int(status_of(sides) is Level.ERROR)


def document(sides: Sides) -> dict[str, Any]:
    """Return all results as plain data, whose keys stay as they are."""
    return {
        "version": __version__,
        "status": status_of(sides),
        "checks": [
            {
                "side": side,
                "name": check.name,
                "looks_at": check.looks_at,
                "finding": finding.level,
                "detail": finding.detail,
                "advice": finding.advice,
            }
            for side, results in sides.items()
            for check, finding in results
        ],
    }


def lines(sides: Sides) -> list[str]:
    """Return a line for each check, one for what to do about it, and one for the whole."""
    results = [result for pairs in sides.values() for result in pairs]
    width = max(len(check.name) for check, _ in results)
    said: list[str] = []
    for check, finding in results:
        said.append(f"{finding.level:<7}  {check.name:<{width}}  {printable(finding.detail)}")
        if finding.advice:
            said.append(f"{'':<7}  {'':<{width}}  -> {printable(finding.advice)}")
    verdict = {
        Level.OK: "nothing is wrong",
        Level.WARNING: "nothing is wrong, but see the warnings",
        Level.ERROR: "something is wrong",
    }
    counts = ", ".join(f"{_levels(sides).count(level)} {level}" for level in Level)
    return [*said, f"{verdict[status_of(sides)]} ({counts})"]
