"""Alert events as they are stored, with what does not matter filled in."""

from __future__ import annotations

from typing import Any

from gradwatch_server.storage.rows import AlertEvent


def event(cursor: int, alert_id: str = "a1", state: str = "firing", **changes: Any) -> AlertEvent:
    """Return an event; `news` makes it one of an alert that fired before."""
    news = changes.pop("news", None)
    alert: dict[str, Any] = {
        "id": alert_id,
        "run": "gpt",
        "attempt": 1,
        "rule": "nonfinite",
        "group": "all",
        "severity": "critical",
        "state": state,
        "first_step": 7,
        "raised_step": None,
        "fired_at": "2026-11-23T06:55:00.000+00:00",
        "updated_at": "2026-11-23T07:00:00.000+00:00",
        "message": "NaN gradient since step 7 on rank 3: h.0",
        "origin": {"rank": 3, "num_ranks": 1, "layer": "h.0", "value": "NaN", "threshold": None},
        "hints": ["float16 overflows"],
        "silenced": False,
        "acknowledged": None,
        "update": None if news is None else {"news": list(news)},
    }
    own = alert | changes
    return AlertEvent(cursor, own["run"], own)
