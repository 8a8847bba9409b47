"""Numbers of what is shown of the runs: an entity tag says by one what its reader has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gradwatch_server.core.views.ranks import SILENT_AFTER_S
from gradwatch_server.core.views.snapshot import RankView, RunView
from gradwatch_server.engine.engine import Engine
from gradwatch_wire.health import RankState

SILENCE_EVERY_S: Final = 1.0
"""Time between two looks for ranks of any run that fell silent."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """State of a run as readers see it.

    Args:
        view: Its snapshot.
        fault: The reason why nothing was taken in, None if all was well.
        silent: The sessions that were silent.
        alive: Ranks that may fall silent, those of other jobs under the name too.
        number: Another, larger one for whatever is shown next of any run.
    """

    view: RunView
    fault: str | None
    silent: frozenset[bytes | None]
    alive: tuple[RankView, ...]
    number: int


class Revisions:
    """Numbers of what an engine's runs are shown as, for one event loop.

    Args:
        engine: Publishes the snapshots.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._shown: dict[str, _Shown] = {}
        self._number = 0
        self._runs: Mapping[str, RunView] = {}
        self._fault: str | None = None
        self._silence_due_s = 0.0

    def of(self, view: RunView) -> int:
        """Return the number of what is shown of a run now.

        Args:
            view: The run, as published last.
        """
        published, before = self._engine.published, self._shown.get(view.name)
        is_same = before is not None and before.view is view
        alive = before.alive if before is not None and is_same else _alive(view)
        heard_ns = self._engine.clock.now_ns() - int(SILENT_AFTER_S * 1e9)
        silent = frozenset(
            rank.session
            for rank in alive
            if max(rank.last_ns, published.last_seen.get(rank.session or b"", 0)) < heard_ns
        )
        fault = published.fault
        if before is not None and is_same and (before.fault, before.silent) == (fault, silent):
            return before.number
        self._number += 1
        self._shown[view.name] = _Shown(view, fault, silent, alive, self._number)
        return self._number

    def newest(self) -> int:
        """Return the number of what is shown of all runs now."""
        published, now_s = self._engine.published, time.monotonic()
        runs, fault = published.runs, published.fault
        is_due = now_s >= self._silence_due_s or fault != self._fault
        if is_due:
            self._silence_due_s = now_s + SILENCE_EVERY_S
        elif runs is self._runs:
            return self._number
        for name in self._shown.keys() - runs.keys():
            del self._shown[name]
            self._number += 1
        for name, view in runs.items():
            before = self._shown.get(name)
            if is_due or before is None or before.view is not view:
                self.of(view)
        self._runs, self._fault = runs, fault
        return self._number


def _alive(view: RunView) -> tuple[RankView, ...]:
    views = (view, *(other for other in view.others if other.is_live))
    return tuple(rank for own in views for rank in own.ranks if rank.state is RankState.ALIVE)
