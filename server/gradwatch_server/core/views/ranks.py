"""The answer to `/runs/{id}/ranks`, worked out from a snapshot. Plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gradwatch_server.core.views.health import LastSeen, health
from gradwatch_server.core.views.snapshot import RunView


def describe_ranks(view: RunView, last_seen: LastSeen, now_ns: int) -> dict[str, Any]:
    """Return what is known of each rank of the current attempt, as `docs/http.md` describes it.

    Args:
        view: The run.
        last_seen: When each session gave its last sign of life.
        now_ns: The time it is, nanoseconds since the epoch.
    """
    report = health(view, last_seen, now_ns)
    return {
        "world": view.world,
        "records": report["records"],
        "ranks": [
            shown
            | {
                "session": own.session.hex() if own.session else None,
                "gaps": [asdict(gap) for gap in own.gaps],
            }
            for own, shown in zip(view.ranks, report["ranks"], strict=True)
        ],
    }
