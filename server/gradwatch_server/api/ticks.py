"""Ticks: what moved lately, beside the alerts of a stream; so that a page asks for what is new.

They are never kept and have no id: who missed some learns the latest from the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from gradwatch_server.core.views.snapshot import RunView

TICK_S: Final = 1.0
"""Shortest time between two ticks."""

Runs = Mapping[str, RunView]
Place = tuple[int, int]
"""Epoch and step."""


class Ticks:
    """What moved since it was last asked for, for one reader.

    Args:
        runs: Returns all runs as they are now.
        place: Returns where the newest row of an attempt is, None without any.
        run: The run that alone is looked at; None for all.
    """

    def __init__(
        self,
        runs: Callable[[], Runs],
        place: Callable[[str, int], Place | None],
        run: str | None = None,
    ) -> None:
        self._runs, self._place, self._run = runs, place, run
        self._seen: dict[str, RunView] = {}
        self._look()

    def _look(self) -> dict[str, RunView]:
        """Return the runs that are not any more what they were."""
        runs = self._runs()
        if self._run is not None:
            runs = {self._run: runs[self._run]} if self._run in runs else {}
        moved = {name: view for name, view in runs.items() if self._seen.get(name) is not view}
        gone = self._seen.keys() - runs.keys()
        for name in gone:
            del self._seen[name]
        self._seen |= moved
        return moved

    def next(self) -> bytes | None:
        """Return the next tick, None if nothing moved."""
        moved = {name: self._describe(own) for name, own in self._look().items()}
        return event("tick", {"runs": moved}) if moved else None

    def _describe(self, view: RunView) -> list[int | None]:
        """Return attempt, epoch, last step and revision."""
        epoch, step = self._place(view.name, view.attempt) or (0, None)
        if step is None and view.frame is not None:
            step = view.frame.step
        return [view.attempt, epoch, step, view.revision]


def event(name: str, data: dict[str, Any]) -> bytes:
    """Return an event without an id, which moves no cursor."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def with_ticks(
    alerts: AsyncIterator[bytes], hello: bytes, ticks: Ticks
) -> AsyncIterator[bytes]:
    """Yield *hello*, then each alert at once, and once a second a tick if something moved."""
    yield hello
    pending = asyncio.ensure_future(_next(alerts))
    due_s = time.monotonic() + TICK_S
    try:
        while True:
            await asyncio.wait({pending}, timeout=max(due_s - time.monotonic(), 0.0))
            if pending.done():
                data = pending.result()
                if data is None:
                    return
                pending = asyncio.ensure_future(_next(alerts))
                yield data
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + TICK_S
                moved = ticks.next()
                if moved is not None:
                    yield moved
    finally:
        pending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pending


async def _next(alerts: AsyncIterator[bytes]) -> bytes | None:
    return await anext(alerts, None)
