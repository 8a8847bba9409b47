"""The page in real Chromium, before a real aggregator. Without the browser its tests are left out.

`GRADWATCH_BROWSER=required` lets them fail instead: CI says so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.page.browsing import Tab
from tests.support.aggregator import Aggregator
from tests.support.job import Job
from tests.support.waiting import PATIENCE_S

REQUIRED: Final = os.environ.get("GRADWATCH_BROWSER") == "required"
HOW: Final = "apt-get install chromium, and pip install --group browser"
WORKER: Final = Path(__file__).parents[1] / "system" / "worker.py"


def _why_not() -> str | None:
    """Say what is missing to look at the page, None if nothing is."""
    try:
        import axe_playwright_python  # noqa: F401
        import playwright  # noqa: F401
    except ImportError as error:
        return f"no {error.name}: {HOW}"
    return None if _find_chromium() else f"no chromium: {HOW}"


def _find_chromium() -> str | None:
    return os.environ.get("GRADWATCH_CHROMIUM") or shutil.which("chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, for all tests."""
    why = _why_not()
    if why is not None:
        if REQUIRED:
            pytest.fail(f"the page cannot be looked at: {why}")
        pytest.skip(f"the page is not looked at: {why}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In a container nothing lets it build its own sandbox; it sees our own page alone.
        started = playwright.chromium.launch(
            executable_path=_find_chromium(), args=["--no-sandbox"], timeout=1000 * PATIENCE_S
        )
        yield started
        started.close()


@pytest.fixture
def aggregator(browser: Any, tmp_path: Path) -> Iterator[Aggregator]:
    """An aggregator that is started."""
    made = Aggregator(tmp_path / "data")
    made.start()
    yield made
    made.close()


@pytest.fixture
def tab(browser: Any, aggregator: Aggregator) -> Iterator[Callable[..., Tab]]:
    """Open the page: `tab(path, color_scheme="dark")`; what went wrong in it fails the test."""
    made: list[Tab] = []

    def open_(path: str = "/", **settings: Any) -> Tab:
        made.append(Tab(browser, aggregator.url, path, **settings))
        return made[-1]

    yield open_
    faults = [fault for each in made for fault in each.close()]
    assert not faults


@pytest.fixture
def train(aggregator: Aggregator) -> Iterator[Callable[..., Job]]:
    """Start a training: `train(world, "--run", "name", ...)`."""
    jobs: list[Job] = []

    def start(world: int, *arguments: str) -> Job:
        jobs.append(Job(WORKER, world, aggregator.ingest, arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
