"""Published state of the engine: immutable snapshots of the runs, and the health of the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.printable import printable
from gradwatch_server.core.state import State
from gradwatch_server.core.views.rules import count_watched, no_layers
from gradwatch_server.core.views.snapshot import RunView, view_run
from gradwatch_server.storage.rows import Loss

PUBLISH_NS: Final = 50_000_000
"""Snapshots are made at most this often: readers cannot tell, and a busy run has a step each ms."""

MAX_PAUSE_NS: Final = 2_000_000_000
"""However much they cost, they are made this often: probes and people look at them."""

SLICE_S: Final = 0.005
"""Of many runs that changed, those are made first that waited longest, and others after a pause."""

SHARE: Final = 0.1
"""Share of the engine's time that snapshots may take."""

LOSS_TOLD_NS: Final = 3_600_000_000_000
"""How long it is told what the start found missing."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Looked:
    """Newest check of a run."""

    attempt: int
    num_layers: int
    rules: Rules

    def is_of(self, view: RunView, rules: Rules) -> bool:
        return (
            self.rules is rules
            and self.num_layers == len(view.names)
            and self.attempt == view.attempt
        )


class UnmatchedRules:
    """Looks at each run once it has a frame, and again when its layers or the rules are others."""

    def __init__(self) -> None:
        self._looked: dict[str, _Looked] = {}
        self._told: set[tuple[str, str]] = set()

    def look(self, views: Iterable[RunView], rules: Rules) -> None:
        """Log what matches nothing; before the first frame layers may still be declared."""
        for view in views:
            looked = self._looked.get(view.name)
            if not view.frames or (looked is not None and looked.is_of(view, rules)):
                continue
            if looked is not None and looked.rules is not rules:
                self._forget(view.name)
            self._looked[view.name] = _Looked(view.attempt, len(view.names), rules)
            self._tell(view, rules)

    def remove(self, run: str) -> None:
        """Forget a run that left memory."""
        self._looked.pop(run, None)
        self._forget(run)

    def _forget(self, run: str) -> None:
        self._told = {key for key in self._told if key[0] != run}

    def _tell(self, view: RunView, rules: Rules) -> None:
        for name, count in count_watched(rules, view).items():
            rule = rules.root[name]
            if count or not isinstance(rule, LayerRule) or (view.name, name) in self._told:
                continue
            self._told.add((view.name, name))
            says = printable(f"rule {name} watches no layer of run {view.name}: ")
            logger.warning("%s", says + printable(no_layers(rule, view)))


@dataclass(slots=True)
class PublishedState:
    """State that readers see. Only the engine's thread writes it.

    Args:
        runs: Name to snapshot of each run; the mapping is replaced, never changed.
        rules: Those in force.
        last_seen: Session to the time of its last sign of life, nanoseconds since the epoch.
        silences: Those that there are, also some that ended.
        fault: Why nothing is taken in just now, None if all is well.
        loss: What the store was found to have lost at the start, None if nothing.
        started_ns: When this start had read the log, nanoseconds since the epoch.
        cursor: That of the newest alert event.
        num_duplicates: Records that came again, since the start.
        num_apply_errors: Entries that could not be applied, since the start.
    """

    runs: Mapping[str, RunView] = field(default_factory=lambda: MappingProxyType({}))
    rules: Rules = field(default_factory=Rules)
    last_seen: dict[bytes, int] = field(default_factory=dict)
    silences: tuple[Silence, ...] = ()
    fault: str | None = None
    loss: Loss | None = None
    started_ns: int = 0
    cursor: int = 0
    num_duplicates: int = 0
    num_apply_errors: int = 0

    def recent_loss(self, now_ns: int) -> Loss | None:
        """Return what was found lost, for a while after: an operator is to see it."""
        return self.loss if now_ns - self.started_ns < LOSS_TOLD_NS else None


class Publisher:
    """Makes new snapshots of the runs that changed."""

    def __init__(self, published: PublishedState) -> None:
        self._published = published
        self._pause_ns = PUBLISH_NS
        self._changed: dict[str, None] = {}  # the one that waited longest first
        self._removed: set[str] = set()
        self._published_ns = 0
        self._unmatched = UnmatchedRules()

    @property
    def is_done(self) -> bool:
        """Completion: true once readers see every change."""
        return not (self._changed or self._removed)

    def note_changed(self, runs: Iterable[str]) -> None:
        """Say that runs are not any more what readers see."""
        self._changed.update(dict.fromkeys(runs))

    def remove(self, run: str) -> None:
        """Take back what was published of a run that left memory, at the next time."""
        self._changed.pop(run, None)
        self._removed.add(run)
        self._unmatched.remove(run)

    def publish(self, state: State, now_ns: int, *, force: bool = False) -> None:
        """Publish what changed, a slice at a time, unless it was done just before."""
        self._published.rules = state.rules
        self._published.silences = tuple(state.silences)
        if self.is_done:
            return
        if now_ns - self._published_ns < self._pause_ns and not force:
            return
        began_s = time.perf_counter()
        runs = self._published.runs
        before = {name: view for name, view in runs.items() if name not in self._removed}
        views: dict[str, RunView] = {}
        took_s = 0.0
        while self._changed and (took_s < SLICE_S or force):
            name = next(iter(self._changed))
            run = state.runs[name]
            views[name] = view_run(run, run.rules, before.get(name))
            del self._changed[name]
            took_s = time.perf_counter() - began_s
        self._published.runs = MappingProxyType(before | views)
        self._unmatched.look(views.values(), state.rules)
        self._removed.clear()
        self._published_ns = now_ns
        took_ns = (time.perf_counter() - began_s) * 1e9
        self._pause_ns = max(PUBLISH_NS, round(min(took_ns / SHARE, MAX_PAUSE_NS)))
