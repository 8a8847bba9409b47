"""Known facts of each rank, worked out from a snapshot. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2s
from typing import Any, Final

from gradwatch_server.core.views.snapshot import RankView, RunView
from gradwatch_wire.health import RankState

SILENT_AFTER_S: Final = 6.0
"""A live rank that gave no sign of life this long is shown as silent: three beats."""

LastSeen = Mapping[bytes, int]
"""Session to the time of its last sign of life in nanoseconds since the epoch, beats included."""


def describe_ranks(view: RunView, last_seen: LastSeen, now_ns: int) -> dict[str, Any]:
    """Return the answer to `/runs/{id}/ranks`, as `docs/http.md` describes it."""
    return {
        "world": view.world,
        "records": count_records(view),
        "ranks": [
            describe_rank(rank, last_seen, now_ns)
            | {
                "session": _digest(rank.session) if rank.session else None,
                "gaps": [asdict(gap) for gap in rank.gaps],
            }
            for rank in view.ranks
        ],
    }


def _digest(session: bytes) -> str:
    """Return what a session is shown as: whoever knows its id can speak for it."""
    return blake2s(session, digest_size=8).hexdigest()


def count_records(view: RunView) -> dict[str, int]:
    """Return how many records of the run were stored, and how many were not, for which reason."""
    return {
        "stored": view.stored,
        "lost": view.lost,
        "late": view.late,
        "unresolved": view.unresolved,
    }


def describe_rank(rank: RankView, last_seen: LastSeen, now_ns: int) -> dict[str, Any]:
    """Return what `/health` says of a rank."""
    last_ns = max(rank.last_ns, last_seen.get(rank.session or b"", 0))
    last_seen_s = max(0.0, (now_ns - last_ns) / 1e9)
    state = rank.state
    if state is RankState.ALIVE and last_seen_s > SILENT_AFTER_S:
        state = RankState.SILENT
    return {
        "rank": rank.rank,
        "state": state,
        "last_step": rank.last_step if rank.last_step >= 0 else None,
        "last_seen_s": round(last_seen_s, 3),
        "stored": rank.stored,
        "lost": rank.lost,
        "unresolved": rank.unresolved,
        "host": rank.host,
        "pid": rank.pid,
        "reason": rank.reason,
        "pace": rank.pace,
        "place": rank.place or None,
        "stack": rank.stack or None,
    }
