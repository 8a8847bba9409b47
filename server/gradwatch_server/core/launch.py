"""Launches: what a HELLO's `job`, such as `7/0`, says of which process came before which."""

from __future__ import annotations


def is_same_job(one: str, other: str) -> bool:
    """Tell whether two launches are of one job, whichever of its restarts they are."""
    return one.partition("/")[0] == other.partition("/")[0]


def precedes(one: str, other: str) -> bool:
    """Tell whether the launch *one* is of the same job as *other*, and was restarted less often."""
    own, later = _parse(one), _parse(other)
    if own is None or later is None or own[0] != later[0]:
        return False
    return own[1] < later[1]


def _parse(job: str) -> tuple[tuple[str, str], int] | None:
    """Return `(id, rendezvous)` and restarts; None if the job names neither, or does not count."""
    number, _, rest = job.partition("/")
    restarts, _, rendezvous = rest.partition("/")
    if not (number or rendezvous) or not restarts.isdecimal():
        return None
    return (number, rendezvous), int(restarts)
