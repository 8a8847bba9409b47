"""The page about GPUs: its table of stages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from benchmarks.gpu_session.stages import STAGES

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "gpu.md").read_text("utf-8")


def test_each_stage_is_on_the_page_with_its_limit() -> None:
    """As the session has it."""
    listed = re.findall(r"^\| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)

    assert listed == [(str(n), f"{stage.limit_s:g}") for n, stage in enumerate(STAGES)]
