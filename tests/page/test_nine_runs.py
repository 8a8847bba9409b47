"""Nine runs, each as it is first seen: what the verdict says, and where the picture points.

`scripts/pictures runs FOLDER` keeps what is seen here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.page.browsing import OpenTab
from tests.page.nine_runs import NINE, NamedRun, feed_run
from tests.support.aggregator import Aggregator

FOLDER: Final = os.environ.get("GRADWATCH_PICTURES")
"""Where a picture of each is put; unset for none."""

SOON: Final = """
[rules.liveness]
info_s = 1.0
info_factor = 2.0
warning_s = 2.0
warning_factor = 2.0
"""
"""A hang is told within seconds."""


@pytest.fixture
def aggregator(browser: Any, tmp_path: Path) -> Iterator[Aggregator]:
    (tmp_path / "gradwatch.toml").write_text(SOON)
    made = Aggregator(tmp_path / "data", "--config", str(tmp_path / "gradwatch.toml"))
    made.start()
    yield made
    made.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("run", NINE, ids=lambda run: str(run.name))
def test_a_run_says_what_is_wrong_without_being_touched(
    tab: OpenTab, aggregator: Aggregator, run: NamedRun
) -> None:
    feed_run(aggregator, run)
    shown = tab(f"/?run={run.name}").until_live()
    shown.page.locator(".verdict", has_text=run.told).wait_for()
    shown.page.locator(".heat canvas[width]").wait_for()
    pressed = shown.page.locator('.segmented button[aria-pressed="true"]')
    if FOLDER:
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
        shown.page.screenshot(path=Path(FOLDER) / f"{run.name}.png")

    first = shown.page.locator(".verdict .reasons .first")
    assert first.count() == (run.told != "healthy")
    assert first.count() == 0 or first.first.inner_text().startswith(run.told)
    assert pressed.inner_text() == run.view
    assert shown.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    marks = shown.page.locator(".heat .gutter .alert")
    assert marks.count() == run.num_marks
    if run.num_marks:  # without scrolling
        assert marks.first.bounding_box()["y"] < 800
