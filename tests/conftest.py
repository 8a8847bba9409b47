"""Fixtures that all tests may use."""

from __future__ import annotations

import os
import signal
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")

from tests.support.peer import Peer  # noqa: E402 - after asserts in it are rewritten
from tests.support.postgres import PostgresServer  # noqa: E402
from tests.support.progress import Progress  # noqa: E402

# A busy machine makes no test wrong: speed is shown by benchmarks.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# pytest-xdist tells its workers a width of 80, which a console would keep from its import on.
os.environ.pop("COLUMNS", None)

# How often a budget lets steps be measured depends on the machine.
os.environ.setdefault("GRADWATCH_OVERHEAD", "none")

STARTS_PROCESSES = {"browser", "gradwatch", "run_script", "serve", "tail", "train"}
"""Fixtures that start a process for the test alone, which makes it slow."""

EXHAUSTIVE_PLACES = {"test_pictures.py", "test_slurm.py"}

SLOW_PLACES = {"integrations", "test_compile.py", "test_module_hook.py", "test_origin_layer.py"}
"""Folders and files in which nearly every test trains in a framework, or compiles."""


def pytest_configure(config: pytest.Config) -> None:
    """Show the progress of a parallel run in one line."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they ask for and where they are, and the cases that are not sampled."""
    cases: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        starts = STARTS_PROCESSES.intersection(getattr(item, "fixturenames", ()))
        if starts or SLOW_PLACES.intersection(item.path.parts):
            item.add_marker(pytest.mark.slow)
        if EXHAUSTIVE_PLACES.intersection(item.path.parts):
            item.add_marker(pytest.mark.exhaustive)
        if item.get_closest_marker("sampled"):
            cases[item.path, item.name.partition("[")[0]].append(item)
    for case in cases.values():
        # By a checksum of the name: every n-th case would miss values of one parameter.
        case.sort(key=lambda item: zlib.crc32(item.name.encode()))
        sampled = case[0].get_closest_marker("sampled")
        assert sampled is not None
        for item in case[sampled.args[0] :]:
            item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(autouse=True, scope="session")
def _sigint_reaches_processes() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _close_peers() -> Iterator[None]:
    yield
    while Peer.open:
        Peer.open.pop().close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests: `postgres.make_database()` gives each its own."""
    server = PostgresServer()
    yield server
    server.close()
