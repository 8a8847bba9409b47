"""The page about GPUs: each finding is held by tests and stages that are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from benchmarks.gpu_session.stages import STAGES

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "gpu.md").read_text("utf-8")
FINDINGS: Final = re.findall(r"^\| G(\d+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)


def test_each_finding_has_a_line() -> None:
    """In order, none twice."""
    assert [int(number) for number, _, _ in FINDINGS] == list(range(1, 30))


def test_what_holds_a_finding_is_there() -> None:
    """A test by its name, or a stage by its number; a page only beside one of them."""
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    defined = {name for text in sources for name in re.findall(r"def (test_\w+)\(", text)}
    for number, _, held_by in FINDINGS:
        tests = re.findall(r"`(test_\w+)`", held_by)
        stages = [
            int(stage)
            for listed in re.findall(r"stages? (\d+(?:, \d+)*)", held_by)
            for stage in listed.split(", ")
        ]
        assert tests or stages, number
        assert set(tests) <= defined, (number, set(tests) - defined)
        assert all(stage < len(STAGES) for stage in stages), number


def test_each_stage_is_on_the_page_with_its_limit() -> None:
    """As the session has it."""
    listed = re.findall(r"^\| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)

    assert listed == [(str(n), f"{stage.limit_s:g}") for n, stage in enumerate(STAGES)]
