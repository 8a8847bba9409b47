"""All runs in short, as `/runs` and `/metrics` show them: built once for each revision.

Of a run that ended, and that recovery has not brought into memory yet, the stored summary is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Final

from gradwatch_server.api.problems import encode
from gradwatch_server.api.views import Views
from gradwatch_server.core import state_codec
from gradwatch_server.core.views.runs import RunSummary, summarize
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.engine import Engine

SLICE: Final = 50
"""Runs that are summed up before others get their turn."""

SHARE: Final = 0.1
"""Time of the event loop that listings may take, however often somebody asks."""

SILENCE_EVERY_S: Final = 1.0
"""Time between two looks for ranks of any run that fell silent."""

MAX_REST_S: Final = 1.0
"""Longest time between two listings, however long one takes."""


class RunListing:
    """The runs of an engine in short, for one event loop.

    Attributes:
        number: Grows whenever readers see something else of any run.
    """

    def __init__(self, engine: Engine, views: Views) -> None:
        self.number = 0
        self._engine = engine
        self._views = views
        self._kept: dict[str, tuple[str, RunSummary]] = {}  # with what changes if it does
        self._rows: dict[str, bytes] = {}
        self._runs: tuple[RunSummary, ...] = ()
        self._building = asyncio.Lock()
        self._of: tuple[int, str | None] = -1, None
        self._began_s = 0.0
        self._not_before_s = 0.0

    async def all(self) -> tuple[RunSummary, ...]:
        """Return all runs as they are after this call, the last one heard of first.

        Raises:
            HTTPException: 503, if the engine cannot build a view.
        """
        asked_s = time.monotonic()
        async with self._building:
            if self._began_s <= asked_s and not self._is_newest():
                await asyncio.sleep(self._not_before_s - time.monotonic())
                await self._build()
        return self._runs

    def row(self, summary: RunSummary) -> bytes:
        """Return the row of `/runs` of a run that `all` returned last, JSON."""
        if summary.name not in self._rows:
            self._rows[summary.name] = encode(summary.row())
        return self._rows[summary.name]

    def _is_newest(self) -> bool:
        """Tell whether the listing is as it would be built now: nothing is new, no rank is late."""
        published = self._engine.published
        is_recent = time.monotonic() - self._began_s < SILENCE_EVERY_S
        return is_recent and self._of == (published.revision, published.fault)

    async def _build(self) -> None:
        began_s = time.monotonic()
        published = self._engine.published
        self._of = published.revision, published.fault
        summaries = await self._read(published.summaries.copy())
        views = await self._views.find_all(
            name for name in self._views.names if name not in summaries
        )
        spent_s = 0.0
        for first in range(0, len(views), SLICE):
            slice_s = time.monotonic()
            for view in views[first : first + SLICE]:
                summaries[view.name] = self._sum(view)
            spent_s += time.monotonic() - slice_s
            await asyncio.sleep(0)
        changed = [
            name for name, encoded in summaries.items() if self._kept.get(name) is not encoded
        ]
        if changed or len(summaries) != len(self._kept):
            self.number += 1
            for name in (*changed, *(self._kept.keys() - summaries.keys())):
                self._rows.pop(name, None)
            runs = (summary for _, summary in summaries.values())
            self._runs = tuple(
                sorted(runs, key=lambda summary: (-summary.updated_ns, summary.name))
            )
        self._kept, self._began_s = summaries, began_s
        self._not_before_s = time.monotonic() + min(spent_s * (1 / SHARE - 1), MAX_REST_S)

    async def _read(self, stored: Mapping[str, bytes]) -> dict[str, tuple[str, RunSummary]]:
        """Return the stored summaries, but for those that are damaged."""
        summaries: dict[str, tuple[str, RunSummary]] = {}
        for number, (name, body) in enumerate(stored.items(), 1):
            if name in self._kept:
                summaries[name] = self._kept[name]
                continue
            with contextlib.suppress(ValueError):
                summaries[name] = "", state_codec.decode(body, RunSummary)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return summaries

    def _sum(self, view: RunView) -> tuple[str, RunSummary]:
        kept, tag = self._kept.get(view.name), self._views.tag(view)
        if kept is not None and kept[0] == tag:
            return kept
        published, now_ns = self._engine.published, self._engine.clock.now_ns()
        return tag, summarize(view, published.last_seen, now_ns, published.fault)
