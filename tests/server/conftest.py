"""Fixtures of the server's tests: the aggregator in this process or one of its own, and readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.aggregator import Aggregator, Serve
from tests.support.engine import RunningEngine, Start
from tests.support.listener import Listen, Listener


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start an engine: `start(rules=..., endpoint=...)`; each stops the one before it."""
    made: list[RunningEngine] = []

    def begin(*, endpoint: str = "tcp://127.0.0.1:0", **settings: Any) -> RunningEngine:
        stop()
        made.append(RunningEngine(tmp_path / "data", endpoint, settings))
        return made[-1]

    def stop() -> None:
        while made:
            made.pop().close()

    yield begin
    stop()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregator]:
    made = Aggregator(tmp_path_factory.mktemp("service") / "data")
    made.start()
    yield made
    code = made.stop()
    made.close()
    assert code == 0, made.errors
    assert "Traceback" not in made.errors, made.errors


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start an aggregator process of the test's own: `serve("--config", ..., NAME="...")`."""
    made: list[Aggregator] = []

    def begin(*arguments: str, **environ: str) -> Aggregator:
        made.append(Aggregator(tmp_path / "data", *arguments, **environ))
        made[-1].start()
        return made[-1]

    yield begin
    for one in made:
        one.close()


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Subscribe: `listen(url, "/alerts/stream", after=0)`."""
    made: list[Listener] = []

    def subscribe(url: str, path: str, after: int | None = None) -> Listener:
        made.append(Listener(url, path, after))
        return made[-1]

    yield subscribe
    for one in made:
        one.close()
