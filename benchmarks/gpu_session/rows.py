"""What a stage finds, written line by line as it is found: a stage may be ended any time."""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

from benchmarks.gpu_session.aims import Aim

NOT_THERE: Final = "not there"


class Rows:
    """Appends to a file of JSON lines.

    Args:
        path: The file; what it had is kept.
        is_rehearsal: Times mean nothing then, and are not judged.
    """

    def __init__(self, path: Path, *, is_rehearsal: bool) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._is_rehearsal = is_rehearsal

    def add(
        self,
        what: str,
        values: Sequence[float] = (),
        unit: str = "",
        *,
        passed: bool | None = None,
        aim: Aim | None = None,
        note: str = "",
    ) -> None:
        """Write one line.

        Args:
            what: What was measured or checked.
            values: Of one measurement each.
            unit: Of the values.
            passed: Whether it is as it has to be; None where nothing has to be.
            aim: What this is evidence of.
            note: Anything else.
        """
        row: dict[str, object]
        row = {"what": what, "values": [float(value) for value in values], "unit": unit}
        row |= {"passed": passed, "aim": None if aim is None else aim.name, "note": note}
        self._file.write(json.dumps(row) + "\n")

    def limit(
        self, what: str, values: Sequence[float], unit: str, most: float, aim: Aim | None = None
    ) -> None:
        """Write a measurement whose median is to be at most so much."""
        passed = None if self._is_rehearsal else median(values) <= most
        self.add(what, values, unit, passed=passed, aim=aim, note=f"at most {most:g}")

    def skip(self, what: str, why: str) -> None:
        """Write that something was not tried."""
        self.add(what, note=f"{NOT_THERE}: {why}")

    @contextlib.contextmanager
    def attempt(self, what: str, aim: Aim | None = None) -> Iterator[None]:
        """Write what is raised in the block as a failure, and go on after it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the rest of the stage has to run
            traceback.print_exc()
            self.add(what, passed=False, aim=aim, note=_first_line(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; the last one may have been cut off."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text("utf-8").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found
