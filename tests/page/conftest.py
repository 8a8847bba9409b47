"""The page in real Chromium, before a real aggregator. Without the browser its tests are left out.

`GRADWATCH_BROWSER=required` lets them fail instead: CI says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.page.browsing import OpenTab, Tab
from tests.support.aggregator import Aggregator
from tests.support.chromium import chromium, missing
from tests.support.job import Job, Train

REQUIRED: Final = os.environ.get("GRADWATCH_BROWSER") == "required"
WORKER: Final = Path(__file__).parents[1] / "system" / "worker.py"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; Playwright keeps an event loop, in which no test of other modules may run."""
    why = missing()
    if why is not None:
        if REQUIRED:
            pytest.fail(why)
        pytest.skip(why)
    with chromium() as started:
        yield started


@pytest.fixture
def aggregator(browser: Any, tmp_path: Path) -> Iterator[Aggregator]:
    made = Aggregator(tmp_path / "data")
    made.start()
    yield made
    made.close()


@pytest.fixture
def tab(browser: Any, aggregator: Aggregator) -> Iterator[OpenTab]:
    """Open the page: `tab(path, color_scheme="dark")`; what went wrong in it fails the test."""
    made: list[Tab] = []

    def open_(path: str = "/", **settings: Any) -> Tab:
        made.append(Tab(browser, aggregator.url, path, **settings))
        return made[-1]

    yield open_
    faults = [fault for each in made for fault in each.close()]
    assert not faults


@pytest.fixture
def train(aggregator: Aggregator) -> Iterator[Train]:
    """Start a training: `train(world, "--run", "name", ...)`."""
    jobs: list[Job] = []

    def start(world: int, *arguments: str) -> Job:
        jobs.append(Job(WORKER, world, aggregator.ingest, arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
