"""What `/runs` and `/metrics` say of each run: worked out when something of the run changed.

All else that an answer about all runs takes is to put together what is there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradwatch_server.api.problems import encode
from gradwatch_server.api.shared_answer import SharedAnswer
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.ranks import SILENT_AFTER_S, LastSeen
from gradwatch_server.core.views.runs import shorten
from gradwatch_server.core.views.snapshot import RankView, RunView
from gradwatch_server.engine.engine import Engine
from gradwatch_wire.health import AlertState, Phase, RankState, Status

SLICE: Final = 50
"""Runs that are worked out before others get their turn."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in short.

    Args:
        view: The snapshot that it was made of.
        fault: Why nothing was taken in, None if all was well.
        silent: The sessions that were silent.
        alive: Ranks that may fall silent, those of other jobs under the name too.
        encoded: What `/runs` says, JSON.
        phase: Where it is in its life.
        status: How well it is.
        score: The last health score, None without.
        ranks: State to the number of ranks in it.
        firing: Severity to the number of alerts that fire.
    """

    view: RunView
    fault: str | None
    silent: frozenset[bytes | None]
    alive: tuple[RankView, ...]
    encoded: bytes
    phase: Phase
    status: Status
    score: float | None
    ranks: Mapping[str, int]
    firing: Mapping[str, int]

    @property
    def key(self) -> tuple[int, str]:
        """By what runs are ordered: when they were last heard of."""
        return self.view.updated_ns, self.view.name


class Summaries:
    """The runs of an engine in short, for one event loop.

    Args:
        engine: Publishes the snapshots.
    """

    def __init__(self, engine: Engine) -> None:
        self.newest: tuple[Summary, ...] = ()  # as last asked for, the last one heard of first
        self._engine = engine
        self._kept: dict[str, Summary] = {}
        self._shared = SharedAnswer(self._look, self._share)

    async def all(self) -> tuple[Summary, ...]:
        """Return all runs, the last one heard of first."""
        return await self._shared.get()

    def _share(self) -> float:
        return self._engine.budget_use.limits.answers_share

    async def _look(self) -> tuple[Summary, ...]:
        published, kept = self._engine.published, self._kept
        views = published.runs
        found: dict[str, Summary] = {}
        for number, (name, view) in enumerate(views.items(), 1):
            now_ns = self._engine.clock.now_ns()
            found[name] = _renew(kept.get(name), view, published.last_seen, now_ns, published.fault)
            if not number % SLICE:
                await asyncio.sleep(0)
        self._kept = found
        self.newest = tuple(sorted(found.values(), key=lambda own: own.key, reverse=True))
        return self.newest


def _renew(
    before: Summary | None, view: RunView, last_seen: LastSeen, now_ns: int, fault: str | None
) -> Summary:
    """Return a run in short at this moment: as it was, if nothing changed."""
    alive = before.alive if before is not None and before.view is view else _alive(view)
    heard_ns = now_ns - int(SILENT_AFTER_S * 1e9)
    silent = frozenset(
        rank.session
        for rank in alive
        if max(rank.last_ns, last_seen.get(rank.session or b"", 0)) < heard_ns
    )
    if (
        before is not None
        and before.view is view
        and (before.fault, before.silent) == (fault, silent)
    ):
        return before
    report = health(view, last_seen, now_ns, fault)
    return Summary(
        view=view,
        fault=fault,
        silent=silent,
        alive=alive,
        encoded=encode(shorten(view, report)),
        phase=report["phase"],
        status=report["status"],
        score=report["score"]["last"],
        ranks=Counter(rank["state"] for rank in report["ranks"]),
        firing=_firing(report),
    )


def _alive(view: RunView) -> tuple[RankView, ...]:
    views = (view, *(other for other in view.others if other.is_live))
    return tuple(rank for own in views for rank in own.ranks if rank.state is RankState.ALIVE)


def _firing(report: Mapping[str, Any]) -> Counter[str]:
    items = report["alerts"]["items"]
    return Counter(own["severity"] for own in items if own["state"] == AlertState.FIRING)
