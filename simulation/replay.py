"""Replay equals live: what a fold of the log from its beginning gives, beside what there is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.entries import Entry
from gradwatch_server.core.state import State
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.engine.engine import _event_row
from gradwatch_server.storage.sqlite.checkpoints import Checkpoints
from gradwatch_wire.jsonable import jsonable
from simulation.aggregator import WINDOW_STEPS, Aggregator
from simulation.disk import Disk
from simulation.invariants import require

CURSORS: Final = "SELECT cursor FROM alert_events ORDER BY rowid"

AlertEvent = tuple[str, str, str, Any]


def check_log(aggregator: Aggregator, committed: list[Entry]) -> None:
    """Check that the disk has everything that was ever committed, or a checkpoint of it."""
    on_disk = dict(aggregator.log.entries(0))
    saved = Checkpoints(aggregator.disk.db).load(WINDOW_STEPS)
    for offset, entry in enumerate(committed, 1):
        kept = on_disk.pop(offset, None)
        trimmed = kept is None and offset <= saved.position.start
        require(kept == entry or trimmed, "what is committed is on the disk", offset, entry)
    require(not on_disk, "what is on the disk was committed", on_disk)
    require(not saved.damaged, "every checkpoint can be read", saved.damaged)
    cursors = [cursor for (cursor,) in aggregator.disk.db.execute(CURSORS)]
    require(cursors == sorted(set(cursors)), "cursors only grow", cursors)


def check_replay(aggregator: Aggregator, committed: Iterable[Entry]) -> None:
    """Check the views and the alerts of a running aggregator, once it did a round."""
    if aggregator.engine is None:
        return
    state = State(WINDOW_STEPS)
    alerts = [alert for entry in committed for alert in state.apply(entry)]
    live, again = story(aggregator.engine._state), story(state)
    for told, derived in zip(live, again, strict=True):
        require(told == derived, "a replay gives the same views", told, derived)
    stored, expected = stored_events(aggregator.disk), events(alerts)
    require(stored == expected, "a replay gives the same alerts", stored, expected)
    firing = [alert_id for alert_id, change, *_ in stored if change == "firing"]
    require(len(firing) == len(set(firing)), "an alert fires once", firing)


def story(state: State) -> list[Any]:
    """Return all that readers see, as it can be compared."""
    stories = []
    for run in state.runs.values():
        view = view_run(run)
        steps = view.series.steps.tolist()
        require(steps == sorted(set(steps)), "each step is closed once, in order", steps)
        alerts = [jsonable(alert.to_dict()) for alert in view.alerts]
        series = [view.series.total_norm, view.series.score, view.series.coverage]
        told = (view.attempts, view.names, view.numel, view.ranks, view.first_bad)
        counts = (view.stored, view.lost, view.late, view.unresolved, view.frames)
        stories.append((view.name, told, counts, alerts, steps, [s.tobytes() for s in series]))
    return stories


def events(alerts: Iterable[Alert]) -> list[AlertEvent]:
    """Return what the alert store holds of these alerts: each change of each once."""
    kept: dict[tuple[str, str], AlertEvent] = {}
    for alert in alerts:
        alert_id, change, run, body = _event_row(alert)
        kept.setdefault((alert_id, change), (alert_id, change, run, json.loads(body)))
    return list(kept.values())


def stored_events(disk: Disk) -> list[AlertEvent]:
    """Return what the alert store holds."""
    rows = disk.db.execute("SELECT alert_id, state, run, body FROM alert_events ORDER BY cursor")
    return [(alert_id, change, run, json.loads(body)) for alert_id, change, run, body in rows]
