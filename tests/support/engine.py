"""An engine in a thread of this process, with its store and its port."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from gradwatch_server.budgets import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Entry
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.engine import Engine
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.storage.sqlite.store import SQLiteStore
from tests.support.peer import Peer
from tests.support.waiting import wait_until
from tests.support.whole_state import UNREPEATED


class RunningEngine:
    """Runs from its construction until it is closed."""

    def __init__(self, directory: Path, endpoint: str, settings: dict[str, Any]) -> None:
        clock = settings.pop("clock", None) or Clock()
        open_store = settings.pop("open_store", lambda: SQLiteStore.open(directory, clock))
        self.store = open_store()
        self.path = Path(self.store.name)
        budget_use = BudgetUse(settings.pop("budgets", None))
        self.ingest = Ingest(endpoint, budget_use=budget_use)
        self.endpoint = self.ingest.endpoint
        self.woken = threading.Event()
        self.failed = threading.Event()
        try:
            self.engine = Engine(
                self.store,
                self.ingest,
                settings.pop("rules", Rules.model_validate(UNREPEATED)),
                clock=clock,
                window_steps=settings.pop("window_steps", 64),
                session_timeout_s=settings.pop("session_timeout_s", 30.0),
                on_alerts=self.woken.set,
                on_failure=self.failed.set,
                retention=settings.pop("retention", None),
                budget_use=budget_use,
            )
        except BaseException:
            self.close()
            raise
        self.published = self.engine.published
        self.engine.start()
        if settings.pop("waits", True):
            wait_until(
                lambda: self.engine._recovery.is_done or not self.engine.is_alive(),
                "all runs are in memory",
            )

    def peer(self, **settings: Any) -> Peer:
        return Peer(self.endpoint, **settings)

    def view(self, run: str = "gpt") -> Any:
        """Return what readers see of a run, None if there is no such run."""
        return self.engine.find_view(run)

    def shows(self, run: str = "gpt", **expected: Any) -> Any:
        """Wait until a run's view has these values."""

        def fitting() -> RunView | None:
            view = self.view(run)
            fits = view is not None and all(getattr(view, k) == v for k, v in expected.items())
            return view if fits else None

        view = wait_until(fitting, f"run {run} with {expected}")
        assert view is not None
        return view

    def entries(self) -> list[Entry]:
        """Return what the logs have, of one run after the other."""
        log = self.store.log
        return [entry for run in log.runs() for _, entry in log.entries(run)]

    def events(self) -> list[tuple[int, str, str]]:
        """Return what the store has: cursor, alert id, state."""
        events = self.store.alert_events.after(0)
        return [(e.cursor, e.alert["id"], e.alert["state"]) for e in events]

    def close(self) -> None:
        """Stop the engine, if it came to be, and let go of port and store."""
        if hasattr(self, "engine"):
            self.engine.stop()
        self.ingest.close()
        self.store.close()


Start: TypeAlias = Callable[..., RunningEngine]
"""Type of the fixture `start`: `start(rules=..., endpoint=...)`."""


def attached(running: RunningEngine) -> tuple[RunningEngine, Peer]:
    """Return an engine and a peer of the run `gpt` that has declared its layers."""
    return running, running.peer().attach()
