"""Views of runs for one event loop: the newest there is, or one that the engine builds now."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable

from fastapi import HTTPException

from gradwatch_server.core.views.ranks import SILENT_AFTER_S
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.commands import CommandError
from gradwatch_server.engine.engine import Engine
from gradwatch_wire.health import RankState

TIMEOUT_S = 10.0
"""Time that the engine has to build a view."""

RECENT_NS = 2_000_000_000
"""Age up to which an older view will do where a newer one is not there soon."""

SOON_S = 0.1
"""Time that the engine has then: a round may take longer where somebody sends what is expensive."""

SLICE_RUNS = 50
"""Views that one reader asks for at once, so that others get their turn."""


class Views:
    """Views that an engine built."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def names(self) -> list[str]:
        return list(self._engine.published.revisions.copy())

    async def find(self, run: str) -> RunView | None:
        """Return the view of a run with all that is committed, None if there is no such run.

        While the engine cannot write, an older view if there is one, and a recent one while the
        engine is busy.
        """
        published = self._engine.published
        if run not in published.revisions:
            return None
        view = published.newest(run)
        if view is None and published.fault is not None:
            view = published.views.get(run)
        if view is not None:
            return view
        old, now_ns = published.views.get(run), self._engine.clock.now_ns()
        is_recent = old is not None and now_ns - old.built_ns < RECENT_NS
        try:
            future = asyncio.wrap_future(self._engine.publishing.request(run))
            return await asyncio.wait_for(future, SOON_S if is_recent else TIMEOUT_S)
        except CommandError as error:
            raise HTTPException(error.status, published.fault or error.detail) from error
        except TimeoutError as error:
            if is_recent and run in published.revisions:
                return old
            detail = published.fault or "the engine did not answer in time"
            raise HTTPException(503, detail) from error

    async def find_all(self, runs: Iterable[str]) -> list[RunView]:
        """Return the views of runs, without those that are gone meanwhile.

        Raises:
            HTTPException: 503, if the engine cannot build one.
        """
        present: list[RunView] = []
        names = list(runs)
        for first in range(0, len(names), SLICE_RUNS):
            views = await asyncio.gather(*map(self.find, names[first : first + SLICE_RUNS]))
            present += [view for view in views if view is not None]
            await asyncio.sleep(0)
        return present

    def tag(self, view: RunView) -> str:
        """Return what changes whenever readers see something else of a run.

        A rank falls silent without an entry of the log.
        """
        published = self._engine.published
        heard_ns = self._engine.clock.now_ns() - int(SILENT_AFTER_S * 1e9)
        live = (view, *(other for other in view.others if other.is_live))
        silent = 0
        for rank in (rank for attempt_view in live for rank in attempt_view.ranks):
            if rank.state is RankState.ALIVE and rank.session is not None:
                last_ns = max(rank.last_ns, published.last_seen.get(rank.session, 0))
                if last_ns < heard_ns:
                    silent = zlib.crc32(rank.session, silent)
        fault = zlib.crc32((published.fault or "").encode())
        return f"{view.run_revision}-{silent:x}-{fault:x}"
