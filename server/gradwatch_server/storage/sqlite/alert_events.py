"""Reading stored alert events, from any thread, on a connection that cannot write."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PAGE: Final = 200
"""Events read at once: a read transaction must stay short, or it keeps the WAL from shrinking."""


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """One change of an alert.

    Args:
        cursor: Position in the stream of all alert events, from 1, without repeats.
        run: Name of the run.
        alert: The alert as it then stood, JSON.
    """

    cursor: int
    run: str
    alert: dict[str, Any]


class AlertStore:
    """The alert events of one log file."""

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.resolve().as_uri()}?mode=ro"

    def newest(self) -> int:
        """Return the cursor of the newest event, 0 without any."""
        with closing(self._connect()) as db:
            (cursor,) = db.execute("SELECT coalesce(max(cursor), 0) FROM alert_events").fetchone()
        return int(cursor)

    def after(self, cursor: int, run: str | None = None, most: int = PAGE) -> list[AlertEvent]:
        """Return the events behind *cursor*, oldest first, at most *most*."""
        where, values = (
            ("", (cursor, most)) if run is None else (" AND run = ?", (cursor, run, most))
        )
        with closing(self._connect()) as db:
            rows = db.execute(
                f"SELECT cursor, run, body FROM alert_events WHERE cursor > ?{where}"  # noqa: S608 - a literal
                " ORDER BY cursor LIMIT ?",
                values,
            ).fetchall()
        return [AlertEvent(number, name, json.loads(body)) for number, name, body in rows]

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._uri, uri=True, timeout=5.0)
        db.execute("PRAGMA query_only=1")
        return db
