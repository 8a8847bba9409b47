"""Fixtures that all tests may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.support")

from tests.support.peer import Peer  # noqa: E402 - after asserts in it are rewritten
from tests.support.postgres import PostgresServer  # noqa: E402
from tests.support.progress import Progress  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

# pytest-xdist tells its workers a width of 80, which a console would keep from its import on.
os.environ.pop("COLUMNS", None)

STARTS_PROCESSES = {"browser", "gradwatch", "run_script", "serve", "tail", "train"}
"""Fixtures that start a process for the test alone, which makes it slow."""

SLOW_PLACES = {"integrations", "test_compile.py", "test_module_hook.py", "test_origin_layer.py"}
"""Folders and files in which nearly every test trains in a framework, or compiles."""


def pytest_configure(config: pytest.Config) -> None:
    """Show the progress of a parallel run in one line."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ask for one of those fixtures, or are in one of those files."""
    for item in items:
        starts = STARTS_PROCESSES.intersection(getattr(item, "fixturenames", ()))
        if starts or SLOW_PLACES.intersection(item.path.parts):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def _sigint_reaches_processes() -> None:
    """In a background job SIGINT is ignored, and a process would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(name="wait_until", scope="session")
def wait_until_fixture() -> Callable[..., Any]:
    """`wait_until(condition, what)`."""
    return wait_until


@pytest.fixture
def peers() -> Iterator[Callable[..., Peer]]:
    """Connect to an endpoint: `peers(endpoint, run="gpt", rank=0, world=1)`."""
    made: list[Peer] = []

    def connect(endpoint: str, **settings: Any) -> Peer:
        made.append(Peer(endpoint, **settings))
        return made[-1]

    yield connect
    for peer in made:
        peer.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests: `postgres.make_database()` gives each its own."""
    server = PostgresServer()
    yield server
    server.close()
