"""Where alerts go: into the store, and down to the ranks of their run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.state import State
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.storage.store import NewAlertEvent
from gradwatch_wire import Alert as AlertRecord
from gradwatch_wire.health import RankState
from gradwatch_wire.jsonable import jsonable


def alert_event(alert: Alert) -> NewAlertEvent:
    """Return what is stored once per alert and change: it fires, has news, is resolved."""
    return NewAlertEvent(alert.id, alert.change, alert.run, json.dumps(jsonable(alert.to_dict())))


def tell_ranks(
    alerts: Iterable[Alert], state: State, peers: Mapping[bytes, bytes], ingest: Ingest
) -> None:
    """Send each alert that is not silenced to the ranks of its attempt, if it lives.

    Else it goes to those of the current attempt.

    Args:
        alerts: What to tell.
        state: Where the sessions are found.
        peers: Session to where its answers go.
        ingest: What sends them.
    """
    for alert in alerts:
        if alert.silenced:
            continue
        record = AlertRecord(alert=alert.to_dict())
        run = state.runs[alert.run]
        own = [attempt for attempt in run.judged if attempt.number == alert.attempt]
        for session in (own[0] if own and own[0].lives else run.current).sessions.values():
            peer = peers.get(session.id)
            if peer is not None and session.state is RankState.ALIVE:
                ingest.reply(peer, session.id, record)
