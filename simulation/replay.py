"""Replay equals live: applying the log from its beginning gives what there is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.state import State
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.engine.alert_delivery import AlertChange
from gradwatch_server.engine.engine import Engine
from gradwatch_server.storage.checkpoints import decode_run
from gradwatch_server.storage.rows import AlertEvent, LogEntry
from gradwatch_server.storage.store import Store
from gradwatch_wire.jsonable import jsonable
from simulation.aggregator import WINDOW_STEPS
from simulation.invariants import InvariantChecker, require
from simulation.scenario import RUN

ALL: Final = 1 << 31


def check_store(store: Store, events: Sequence[AlertEvent], invariants: InvariantChecker) -> None:
    """Check that the disk has everything that was ever committed, or a checkpoint of it."""
    on_disk = {
        (run, number): entry for run in store.log.runs() for number, entry in store.log.entries(run)
    }
    saved = {run: _position(store, run) for run in {line.run for line in invariants.entries}}
    last: Counter[str] = Counter()
    for line in invariants.entries:
        last[line.run] += 1
        number = last[line.run]
        kept = on_disk.pop((line.run, number), None)
        trimmed = kept is None and number <= saved[line.run]
        promise = "what is committed is on the disk"
        require(kept == line.entry or trimmed, promise, line.run, number, line.entry)
    require(not on_disk, "what is on the disk was committed", on_disk)
    invariants.check_alert_events(list(events))


def _position(store: Store, run: str) -> int:
    """Return the newest entry of a run that what is saved of it stands for."""
    saved, forgotten = store.state.run(run), store.state.forgotten(run).position
    return forgotten if saved is None else decode_run(saved, WINDOW_STEPS).position


class Replay:
    """The log applied from its beginning, by a state that never stops: it only goes on."""

    def __init__(self) -> None:
        self.state = State(WINDOW_STEPS)
        self.events: list[tuple[str, Any]] = []
        """Run and alert of what is to be stored: each change of each alert once."""
        self._changes: set[tuple[str, str]] = set()
        self._num_applied = 0

    def follow(self, committed: Sequence[LogEntry]) -> Replay:
        """Apply what is new; return itself."""
        for line in committed[self._num_applied :]:
            self._expect(self.state.apply_to(line.run, line.entry))
        self._num_applied = len(committed)
        return self

    def _expect(self, alerts: Iterable[Alert]) -> None:
        for event in (AlertChange.of(alert).event for alert in alerts):
            change = event.alert_id, event.change
            if change not in self._changes:
                self._changes.add(change)
                self.events.append((event.run, json.loads(event.body)))


def check_replay(engine: Engine, events: Sequence[AlertEvent], replay: Replay) -> None:
    """Check the views of an engine between two rounds, and the alert events that it stored."""
    away = engine._recovery.away
    live, again = views_of(engine._state), views_of(replay.state)
    again = [own for own in again if own[0] not in away]
    for told, derived in zip(live, again, strict=True):
        require(told == derived, "a replay gives the same views", told, derived)
    stored = [(event.run, event.alert) for event in events]
    promise = "a replay gives the same alerts"
    require(stored == replay.events, promise, stored, replay.events)
    fired = [own for _, own in stored if own["state"] == "firing"]
    told = [(own["id"], (own["update"] or {"number": 0})["number"]) for own in fired]
    require(len(told) == len(set(told)), "an alert fires once, and tells what is new once", told)


def views_of(state: State) -> list[Any]:
    """Return all that readers see, as it can be compared."""
    views = []
    for _, run in sorted(state.runs.items()):
        view = view_run(run)
        steps = view.series.steps.tolist()
        ordered = view.name != RUN or steps == sorted(set(steps))  # steps of others may go back
        require(ordered, "each step is closed once, in order", steps)
        alerts = [jsonable(alert.to_dict()) for alert in view.alerts]
        series = [view.series.total_norm, view.series.score, view.series.coverage]
        told = (view.attempts, view.names, view.numel, view.ranks, view.first_bad)
        counts = (view.stored, view.lost, view.late, view.unresolved, view.frames)
        views.append((view.name, told, counts, alerts, steps, [s.tobytes() for s in series]))
    return views


def alert_events(store: Store) -> list[AlertEvent]:
    return store.alert_events.after(0, limit=ALL)
