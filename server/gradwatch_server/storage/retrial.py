"""A stored run, judged once more by other rules."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Began, Entry, Forgotten, RulesSet
from gradwatch_server.core.state import State
from gradwatch_server.storage.encoding import EncodedEntry, decode_entry
from gradwatch_server.storage.rows import StorageError
from gradwatch_wire.health import AlertState

logger = logging.getLogger(__name__)


def judge_again(
    log: Iterable[EncodedEntry], run: str, rules: Rules, window_steps: int
) -> list[Alert]:
    """Apply what is stored of a run to an empty state; return each alert as it stands at the end.

    Args:
        rules: The rules, from the first step on, whatever was in force then.

    Raises:
        StorageError: If nothing is stored of the run.
    """
    state, newest = State(window_steps, rules), dict[str, Alert]()
    for entry in _entries(log, rules):
        try:
            newest |= {alert.id: alert for alert in state.apply_to(run, entry)}
        except Exception as error:  # noqa: BLE001 - as the engine does: it must not cost the entries after it
            logger.warning("an entry of %a cannot be judged: %s", run, error)
    if run not in state.runs:
        msg = f"no records of run {run[:80]!a} are stored; `gradwatch runs` lists the runs"
        raise StorageError(msg)
    for attempt in state.runs[run].attempts:  # what fires on was told with an earlier last bad step
        alerts = attempt.active_alerts.alerts()
        newest |= {alert.id: alert for alert in alerts if alert.state is AlertState.FIRING}
    return list(newest.values())


def _entries(log: Iterable[EncodedEntry], rules: Rules) -> Iterator[Entry]:
    """Yield the entries by which the run is judged: other rules are in force from its beginning."""
    for encoded in log:
        try:
            entry = decode_entry(encoded)
        except Exception as error:  # noqa: BLE001 - a damaged entry must not cost the next ones
            logger.warning("an entry of the log cannot be read: %s", error)
            continue
        match entry.body:
            case Began() as began:
                yield replace(entry, body=replace(began, rules=rules.json_text))
            case RulesSet() | Forgotten():
                continue  # what is forgotten is still there
            case _:
                yield entry
