"""What `/runs` and `/metrics` say of each run: worked out when something of the run changed.

All else that an answer about all runs takes is to put together what is there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic

from gradwatch_server.api.problems import encode
from gradwatch_server.api.run_rows import AnyListed, describe_row
from gradwatch_server.api.shared_answer import SharedAnswer
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.ranks import SILENT_AFTER_S, LastSeen
from gradwatch_server.core.views.runs import shorten
from gradwatch_server.core.views.snapshot import RankView, RunView
from gradwatch_server.engine.view import EngineView
from gradwatch_wire.health import AlertState, Phase, RankState, Status

SLICE: Final = 50
"""Runs that are worked out before others get their turn."""


MAX_GONE: Final = 4_096
"""Names of runs that are not there any more, the newest: enough for who asks now and then."""


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
        lowest_score: The lowest one of the window, None without.
        norm: The last gradient norm over all layers and ranks, None if it is not known.
        nonfinite_steps: Steps of the window whose gradient norm was NaN or Inf.
        usual_step_time_s: Median of the newest gaps between steps, None while they are too few.
        ranks: State to the number of ranks in it.
        firing: Severity to the number of alerts that fire.
        rules: Rule and severity to the number of alerts that fire.
        number: That of the listing in which it came to be so.
    """

    view: RunView
    fault: str | None
    silent: frozenset[bytes | None]
    alive: tuple[RankView, ...]
    encoded: bytes
    phase: Phase
    status: Status
    score: float | None
    lowest_score: float | None
    norm: float | None
    nonfinite_steps: int
    usual_step_time_s: float | None
    ranks: Mapping[str, int]
    firing: Mapping[str, int]
    rules: Mapping[tuple[str, str], int]
    number: int = 0

    @property
    def key(self) -> tuple[int, str]:
        """By what runs are ordered: when they were last heard of."""
        return self.view.updated_ns, self.view.name

    @property
    def step(self) -> int:
        """The step of its last frame, -1 without."""
        return -1 if self.view.frame is None else self.view.frame.step

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is expected of it."""
        return self.phase not in (Phase.WAITING, Phase.RUNNING)

    def row(self, spark: int | None) -> bytes:
        """Return what `/runs` says of it, JSON; with a curve of so many values, if it is given."""
        return self.encoded if spark is None else encode(describe_row(self, spark))


@dataclass(frozen=True, slots=True)
class Listing(Generic[AnyListed]):
    """All runs at one moment, and what tells somebody who knows an earlier one what is new.

    Args:
        runs: The last one heard of first.
        number: Another, larger one whenever something changed.
        gone: Name to the number of the listing in which a run was not there any more.
        forgotten: Number before which it is not known any more which runs went.
    """

    runs: tuple[AnyListed, ...] = ()
    number: int = 0
    gone: Mapping[str, int] = field(default_factory=dict)
    forgotten: int = 0

    def next(self, found: Mapping[str, AnyListed]) -> Listing[AnyListed]:
        """Return the one after it.

        Args:
            found: Name to run; what changed has the next number.
        """
        next_ = self.number + 1
        gone = {name: at for name, at in self.gone.items() if name not in found}
        left = {own.key[1] for own in self.runs} - found.keys()
        gone |= dict.fromkeys(left, next_)
        forgotten = self.forgotten
        while len(gone) > MAX_GONE:
            forgotten = gone.pop(next(iter(gone)))
        is_new = gone != self.gone or any(own.number == next_ for own in found.values())
        runs = tuple(sorted(found.values(), key=lambda own: own.key, reverse=True))
        return Listing(runs, next_ if is_new else self.number, gone, forgotten)


class Summaries:
    """The runs of an engine in short, for one event loop.

    Args:
        engine: Publishes the snapshots.
    """

    def __init__(self, engine: EngineView) -> None:
        self._listing: Listing[Summary] = Listing()
        self._engine = engine
        self._kept: dict[str, Summary] = {}
        self._shared = SharedAnswer(self._look, self._share)

    @property
    def newest(self) -> tuple[Summary, ...]:
        """The runs as last asked for, the last one heard of first."""
        return self._listing.runs

    async def all(self) -> tuple[Summary, ...]:
        """Return all runs, the last one heard of first."""
        return (await self.listing()).runs

    async def listing(self) -> Listing[Summary]:
        """Return all runs, and what tells which of them are new."""
        return await self._shared.get()

    def _share(self) -> float:
        return self._engine.budget_use.limits.answers_share

    async def _look(self) -> Listing[Summary]:
        published, kept, before = self._engine.published, self._kept, self._listing
        next_ = before.number + 1
        views = published.runs
        found: dict[str, Summary] = {}
        for number, (name, view) in enumerate(views.items(), 1):
            now_ns = self._engine.clock.now_ns()
            own = _renew(kept.get(name), view, published.last_seen, now_ns, published.fault)
            found[name] = own if own is kept.get(name) else replace(own, number=next_)
            if not number % SLICE:
                await asyncio.sleep(0)
        self._listing = before.next(found)
        self._kept = found
        return self._listing


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
    firing = [own for own in report["alerts"]["items"] if own["state"] == AlertState.FIRING]
    return Summary(
        view=view,
        fault=fault,
        silent=silent,
        alive=alive,
        encoded=encode(shorten(view, report)),
        phase=report["phase"],
        status=report["status"],
        score=report["score"]["last"],
        lowest_score=report["score"]["min"],
        norm=report["gradient_norm"]["last"],
        nonfinite_steps=report["gradient_norm"]["nonfinite_steps"],
        usual_step_time_s=report["usual_step_time_s"],
        ranks=Counter(rank["state"] for rank in report["ranks"]),
        firing=Counter(own["severity"] for own in firing),
        rules=Counter((own["rule"], own["severity"]) for own in firing),
    )


def _alive(view: RunView) -> tuple[RankView, ...]:
    views = (view, *(other for other in view.others if other.is_live))
    return tuple(rank for own in views for rank in own.ranks if rank.state is RankState.ALIVE)
