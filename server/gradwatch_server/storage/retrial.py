"""A stored run, judged once more by other rules."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Entry, Forgotten, Opened, RulesSet
from gradwatch_server.core.state import State
from gradwatch_server.storage.encoding import EncodedEntry, decode_entry
from gradwatch_server.storage.store import StorageError
from gradwatch_wire import Kind
from gradwatch_wire.health import AlertState

logger = logging.getLogger(__name__)


def judge_again(
    log: Iterable[EncodedEntry], run: str, rules: Rules, window_steps: int
) -> list[Alert]:
    """Apply what is stored of a run to an empty state; return each alert as it stands at the end.

    Args:
        log: Entries of the log, oldest first.
        run: Name of the run.
        rules: The rules, from the first step on, whatever was in force then.
        window_steps: Frames that a window holds.

    Raises:
        StorageError: If nothing is stored of the run.
    """
    state, found = State(window_steps, rules), dict[str, Alert]()
    for entry in _entries_of(log, run):
        try:
            found |= {alert.id: alert for alert in state.apply(entry)}
        except Exception as error:  # noqa: BLE001 - as the engine does: it must not cost the entries after it
            logger.warning("an entry of %a cannot be judged: %s", run, error)
    if run not in state.runs:
        msg = f"no records of run {run[:80]!a} are stored; `gradwatch runs` lists the runs"
        raise StorageError(msg)
    for attempt in state.runs[run].attempts:  # what fires on was told with an earlier last bad step
        alerts = attempt.active_alerts.alerts()
        found |= {alert.id: alert for alert in alerts if alert.state is AlertState.FIRING}
    return list(found.values())


def _entries_of(log: Iterable[EncodedEntry], run: str) -> Iterator[Entry]:
    """Yield the entries that concern the run or all runs, but no rules."""
    sessions: set[bytes | None] = {None}
    for encoded in log:
        # To decode a record costs most: those of other runs are left as they are.
        if encoded.session not in sessions and encoded.kind != Kind.HELLO:
            continue
        try:
            entry = decode_entry(encoded)
        except Exception as error:  # noqa: BLE001 - a damaged row must not cost the next ones
            logger.warning("an entry of the log cannot be read: %s", error)
            continue
        match entry.body:
            case Opened(session, hello) if hello.run == run:
                sessions.add(session)
            case Opened() | RulesSet() | Forgotten():
                continue  # other rules are in force, and what is forgotten is still there
        yield entry
