"""A finding: what a check found, how bad that is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it works, or may; somebody should look
    ERROR = "error"  # it does not work
    SKIPPED = "skipped"  # it could not be looked at, or there is nothing to look at


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Args:
        level: How bad it is.
        detail: What was found; of what was skipped, why.
        advice: What to do, empty if nothing is to be done.
        blocks_others: Whether checks that need this one have nothing to look at, as with errors.
    """

    level: Level
    detail: str
    advice: str = ""
    blocks_others: bool = False


def ok(detail: str) -> Finding:
    """Return a finding of something that is as it should be."""
    return Finding(Level.OK, detail)


def warning(detail: str, advice: str) -> Finding:
    """Return a finding that somebody should look at."""
    return Finding(Level.WARNING, detail, advice)


def error(detail: str, advice: str) -> Finding:
    """Return a finding that keeps gradwatch from working."""
    return Finding(Level.ERROR, detail, advice)


def skipped(why: str) -> Finding:
    """Return the finding of a check that had nothing to look at."""
    return Finding(Level.SKIPPED, why)


def worst(levels: list[Level]) -> Level:
    """Return the worst of some levels; `ok` if there is nothing to complain of."""
    order = (Level.ERROR, Level.WARNING)
    return next((level for level in order if level in levels), Level.OK)
