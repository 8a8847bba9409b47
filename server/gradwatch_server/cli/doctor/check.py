"""A check, and how checks are run: one after another, none for long, none with a traceback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from gradwatch_server.cli.doctor.finding import Finding, Level, error, skipped
from gradwatch_server.errors import GradwatchError

DEADLINE_S: Final = 20.0
"""A check that takes longer is given up: a name server or a network file system may hang for ever.
All that wait for somebody give up earlier, by limits of their own."""

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject]):
    """One thing that is looked at.

    Args:
        name: By which it is known, also in JSON.
        looks_at: What it looks at.
        is_error: When it finds an error, empty if never.
        is_warning: When it finds a warning, empty if never.
        look: Looks at it.
        needs: Checks before it, without which there is nothing to look at.
    """

    name: str
    looks_at: str
    is_error: str
    is_warning: str
    look: Callable[[Subject], Finding]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found, by its name."""

    check: Check[Any]
    finding: Finding


def run_checks(
    checks: Iterable[Check[Subject]], subject: Subject, deadline_s: float = DEADLINE_S
) -> Iterator[Result]:
    """Run checks in order; yield what each found. Nothing is raised.

    Args:
        checks: The checks.
        subject: What they look at.
        deadline_s: How long each may take.
    """
    failed: set[str] = set()
    for check in checks:
        missing = [name for name in check.needs if name in failed]
        if missing:
            finding = skipped(f"needs what {missing[0]!r} looks at")
        else:
            finding = _look(check, subject, deadline_s)
        if finding.level is Level.ERROR or finding.blocks_others or missing:
            failed.add(check.name)
        yield Result(check, finding)


def _look(check: Check[Subject], subject: Subject, deadline_s: float) -> Finding:
    """Run one check in a thread, which is left behind if it hangs."""
    found: list[Finding] = []

    def run() -> None:
        try:
            found.append(check.look(subject))
        except GradwatchError as fault:
            found.append(error(str(fault), "see what it says"))
        except Exception as fault:  # noqa: BLE001 - one that fails must not end the others
            found.append(_failed(fault))

    thread = threading.Thread(target=run, name=f"gradwatch-doctor-{check.name}", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if found:
        return found[0]
    return error(f"no answer from the system within {deadline_s:g} s", "look after what hangs")


def _failed(fault: Exception) -> Finding:
    return error(
        f"the check itself failed: {type(fault).__name__}: {fault}",
        "tell its authors, with this line",
    )
