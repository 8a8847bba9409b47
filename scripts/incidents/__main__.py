"""Writes docs/incidents.md and its pictures: `scripts/pictures incidents`.

Exit codes: 0 they were written, 1 something is missing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from incidents.cases import CASES
from incidents.incident import happen
from incidents.pictures import take, write_log
from incidents.text import PAGE, page
from tests.support.chromium import missing

ROOT: Final = Path(__file__).resolve().parents[2]


def main() -> int:
    """Train, judge, photograph and write; return the exit code."""
    why = missing()
    if why is not None:
        print(f"pictures: {why}", file=sys.stderr)
        return 1
    incidents = []
    for case in CASES:
        incidents.append(happen(case))
        print(f"{case.name}: {len(incidents[-1].findings)} alerts")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "data"
        write_log(incidents, directory)
        for file in take(incidents, directory, ROOT / "docs" / "pictures"):
            print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1e3:.0f} kB")
    PAGE.write(page(incidents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
