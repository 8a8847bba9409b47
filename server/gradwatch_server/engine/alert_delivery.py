"""Where alerts go: into the store, and down to the ranks of their run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.state import State
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.storage.store import NewAlertEvent
from gradwatch_wire import Alert as AlertRecord
from gradwatch_wire.health import AlertState, RankState
from gradwatch_wire.jsonable import jsonable


def alert_event(alert: Alert) -> NewAlertEvent:
    """Return what is stored once per alert and change: firing, each higher severity, resolved."""
    rose = alert.state is AlertState.FIRING and alert.raised_step is not None
    change = f"{alert.state}:{alert.severity}" if rose else str(alert.state)
    return NewAlertEvent(alert.id, change, alert.run, json.dumps(jsonable(alert.to_dict())))


def tell_ranks(
    alerts: Iterable[Alert], state: State, peers: Mapping[bytes, bytes], ingest: Ingest
) -> None:
    """Send each alert to the living sessions of its attempt; if none lives, of the current one.

    Args:
        alerts: What to tell.
        state: Where the sessions are found.
        peers: Session to where its answers go.
        ingest: What sends them.
    """
    for alert in alerts:
        record = AlertRecord(alert=alert.to_dict())
        run = state.runs[alert.run]
        own = [attempt for attempt in run.judged if attempt.number == alert.attempt]
        for session in (own[0] if own and own[0].lives else run.current).sessions.values():
            peer = peers.get(session.id)
            if peer is not None and session.state is RankState.ALIVE:
                ingest.reply(peer, session.id, record)
