"""tests/README.md names a test for each promise, and `scripts/test` runs each of these tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
TABLE: Final = (ROOT / "tests" / "README.md").read_text("utf-8")
ROWS: Final = re.findall(r"^\| (?!-)(.+?) \| (.+) \|$", TABLE, re.MULTILINE)
TESTS: Final = sorted({test for _, named in ROWS for test in re.findall(r"`(tests/\S+)`", named)})

REQUIREMENTS: Final = {"A": 13, "B": 6, "C": 3, "D": 9, "E": 4}
"""Sections of what the source documents ask for, and the number of rows of each."""


def promises_of_the_readme() -> list[str]:
    """Return the claims of the quoted promise, and the bold ones after it."""
    readme = (ROOT / "README.md").read_text("utf-8")
    section = readme.split("## What it promises")[1].split("\n## ")[0]
    quoted = " ".join(re.findall(r"^> (.*)$", section, re.MULTILINE)).rstrip(".")
    bold = re.findall(r"^\* \*\*(.+?)\*\*", section, re.MULTILINE | re.DOTALL)
    return [" ".join(each.split()).rstrip(".,") for each in [*quoted.split(";"), *bold]]


@pytest.mark.parametrize("promise", promises_of_the_readme())
def test_each_promise_of_the_readme_has_a_row(promise: str) -> None:
    assert promise in [row for row, _ in ROWS]


def test_each_requirement_has_a_row() -> None:
    asked = [f"{letter}{n + 1}" for letter, count in REQUIREMENTS.items() for n in range(count)]

    assert [row.split()[0] for row, _ in ROWS if re.match(r"[A-E]\d+ ", row)] == asked


def test_each_row_names_a_test() -> None:
    empty = [row for row, tests in ROWS if tests != "tests" and "`tests/" not in tests]

    assert empty == []


@pytest.mark.slow
def test_each_named_test_is_run_by_scripts_test() -> None:
    files = sorted({test.partition("::")[0] for test in TESTS})
    assert [file for file in files if not (ROOT / file).exists()] == []

    collect = ["-m", "pytest", "--collect-only", "-q", "-m", "not exhaustive", *files]
    found = subprocess.run(
        [sys.executable, *collect], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    collected = {line.partition("[")[0] for line in found.splitlines()}

    assert [test for test in TESTS if test not in collected] == []
