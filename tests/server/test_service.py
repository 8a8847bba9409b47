"""The aggregator as one piece, in this process: what the process tests cannot make happen."""

from __future__ import annotations

import gc
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.engine.housekeeping import Housekeeping
from gradwatch_server.errors import GradwatchError
from gradwatch_server.service import serve
from gradwatch_server.settings import Settings
from gradwatch_server.storage.sqlite.store import SQLiteStore

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(http="127.0.0.1:0", ingest="tcp://127.0.0.1:0", data=tmp_path / "data")


def test_a_failed_engine_ends_the_process_with_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aggregator that takes nothing in must not look alive; everything is let go of."""
    monkeypatch.setattr(Housekeeping, "add", lambda self, now_ns, batch: 1 / 0)
    announced: list[Any] = []
    with pytest.raises(GradwatchError, match="the engine failed"):
        serve(settings, lambda *addresses: announced.append(addresses))

    assert len(announced) == 1
    SQLiteStore.open(settings.data, Clock()).close()
    assert "gradwatch-engine" not in [thread.name for thread in threading.enumerate()]


def test_signals_are_what_they_were_before(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    add = Housekeeping.add

    def interrupt(self: Housekeeping, *arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        add(self, *arguments)

    monkeypatch.setattr(Housekeeping, "add", interrupt)
    serve(settings, lambda *_: None)

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_what_stays_is_no_work_for_the_garbage_collector(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[int] = []

    def look(*_: Any) -> None:
        frozen.append(gc.get_freeze_count())
        if frozen[-1]:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Housekeeping, "add", look)
    serve(settings, lambda *_: None)

    assert max(frozen) > 10_000
    assert gc.get_freeze_count() == 0


def test_a_port_that_is_taken_leaves_the_directory_free(settings: Settings) -> None:
    """A start that fails half-way lets go of what it had."""
    with pytest.raises(GradwatchError, match="cannot bind the ingest endpoint"):
        serve(settings.model_copy(update={"ingest": "tcp://192.0.2.1:5555"}), lambda *_: None)

    SQLiteStore.open(settings.data, Clock()).close()
