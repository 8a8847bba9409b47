"""Fixtures of the system tests: an aggregator process, and training jobs of one or more ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Job, Train

HERE = Path(__file__).parent


@pytest.fixture
def is_forked() -> bool:
    """Whether processes are forks of one that has imported everything."""
    return True


@pytest.fixture
def environ() -> dict[str, str]:
    """Settings of the aggregator; a test may change them before it starts."""
    return {}


@pytest.fixture
def aggregator(tmp_path: Path, environ: dict[str, str], is_forked: bool) -> Iterator[Aggregator]:
    """An aggregator that is not started yet; its ports are known and nobody listens on them."""
    made = Aggregator(tmp_path / "data")
    made.is_forked = is_forked
    made.environ = environ
    yield made
    made.close()


@pytest.fixture
def train(aggregator: Aggregator, is_forked: bool) -> Iterator[Train]:
    """Start a training job: `train(world, "--run", "name", ..., worker="worker.py")`."""
    jobs: list[Job] = []

    def start(world: int, *arguments: str, worker: str = "worker.py") -> Job:
        jobs.append(Job(HERE / worker, world, aggregator.ingest, arguments, is_forked))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
