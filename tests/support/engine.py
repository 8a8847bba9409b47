"""An engine in a thread of this process, with its log and its port."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.engine import Engine
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.storage.sqlite.alert_events import AlertStore
from gradwatch_server.storage.sqlite.log import Log
from tests.support.waiting import wait_until


class RunningEngine:
    """Runs from its construction until it is closed."""

    def __init__(self, directory: Path, endpoint: str, settings: dict[str, Any]) -> None:
        self.log = Log(directory)
        self.ingest = Ingest(endpoint)
        self.endpoint = self.ingest.endpoint
        self.woken = threading.Event()
        self.failed = threading.Event()
        try:
            self.engine = Engine(
                self.log,
                self.ingest,
                settings.pop("rules", Rules()),
                window_steps=settings.pop("window_steps", 64),
                session_timeout_s=settings.pop("session_timeout_s", 30.0),
                on_alerts=self.woken.set,
                on_failure=self.failed.set,
                keeping=settings.pop("keeping", None),
            )
        except BaseException:
            self.close()
            raise
        self.board = self.engine.board
        self.store = AlertStore(self.log.path)
        self.engine.start()

    def view(self, run: str = "gpt") -> RunView | None:
        """Return what is published of a run."""
        return self.board.runs.get(run)

    def shows(self, run: str = "gpt", **expected: Any) -> RunView:
        """Wait until a run's view has these values."""

        def fitting() -> RunView | None:
            view = self.view(run)
            fits = view is not None and all(getattr(view, k) == v for k, v in expected.items())
            return view if fits else None

        view = wait_until(fitting, f"run {run} with {expected}")
        assert view is not None
        return view

    def events(self) -> list[tuple[int, str, str]]:
        """Return what the store has: cursor, alert id, state."""
        return [(e.cursor, e.alert["id"], e.alert["state"]) for e in self.store.after(0)]

    def close(self) -> None:
        """Stop the engine, if it came to be, and let go of port and log."""
        if hasattr(self, "engine"):
            self.engine.stop()
        self.ingest.close()
        self.log.close()
