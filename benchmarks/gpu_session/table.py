"""The table at the end, as plain text: nothing but Python may be there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmarks.gpu_session.aims import verdicts
from benchmarks.gpu_session.stages import STAGES
from benchmarks.spread import with_range

_MARKS: Final = {True: "ok", False: "FAILED", None: ""}


def lines(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table: each stage with what it found, then each aim."""
    if state["is_rehearsal"]:
        yield "A rehearsal on the CPU: no number here means anything."
    for number, stage in enumerate(STAGES):
        found = state["stages"].get(str(number))
        if found is None:
            yield f"{number:2}  {stage.title}: not run"
            continue
        yield f"{number:2}  {stage.title}: {found['status']}, {found['seconds']:.0f} s"
        yield from map(_line, found["rows"])
    yield ""
    for aim, verdict in verdicts(all_rows(state)).items():
        yield f"{verdict:>12}  {aim.value}"


def all_rows(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of all stages."""
    return [row for stage in state["stages"].values() for row in stage["rows"]]


def _line(row: Mapping[str, Any]) -> str:
    number = with_range(row["values"], ".4g") if row["values"] else ""
    note = f"  {row['note']}" if row["note"] else ""
    mark = _MARKS[row["passed"]]
    return f"      {row['what']:<52} {number:>26} {row['unit']:<8} {mark:<6}{note}".rstrip()
