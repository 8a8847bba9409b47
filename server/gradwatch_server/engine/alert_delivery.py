"""Alerts as they are stored and sent down to the ranks of their run."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.attempt.attempt import Attempt
from gradwatch_server.core.session import RankSession
from gradwatch_server.core.state import State
from gradwatch_server.ingest.inbox import Inbox
from gradwatch_server.ingest.message import PackedRecord
from gradwatch_server.storage.rows import NewAlertEvent
from gradwatch_wire import Alert as AlertRecord
from gradwatch_wire import Json
from gradwatch_wire.codec import encode_body
from gradwatch_wire.health import RankState
from gradwatch_wire.jsonable import jsonable

FIRST_RANKS: Final = 16
"""Ranks of the origin that are told at once; of a job of thousands it can be all of them."""

COPIES_PER_ROUND: Final = 64
"""Copies for the other ranks in one round: one takes 20 us."""

MAX_WAITING: Final = 65_536
"""Copies that wait; of an alert beyond them the other ranks are not told."""


@dataclass(frozen=True, slots=True)
class AlertChange:
    """A change of an alert and its message, made once for the store and for all ranks.

    Args:
        event: What is stored once per alert and change: it fires, has news, is resolved.
    """

    alert: Alert
    plain: Mapping[str, Json]
    event: NewAlertEvent

    @classmethod
    def of(cls, alert: Alert) -> Self:
        plain = alert.to_dict()
        body = json.dumps(jsonable(plain))
        return cls(alert, plain, NewAlertEvent(alert.id, alert.change, alert.run, body))


@dataclass(frozen=True, slots=True)
class _Copies:
    """An alert, and the sessions that are still to be told."""

    packed: PackedRecord
    sessions: deque[RankSession]


class AlertDelivery:
    """Tells each alert to rank 0 and the ranks of its origin at once, to all others by and by."""

    def __init__(self, state: State, peers: Mapping[bytes, bytes], ingest: Inbox) -> None:
        self._state = state
        self._peers = peers
        self._ingest = ingest
        self._waiting: deque[_Copies] = deque()
        self._num_waiting = 0

    @property
    def is_done(self) -> bool:
        """Completion: true once everybody was told."""
        return not self._waiting

    def add(self, changes: Iterable[AlertChange]) -> None:
        """Tell each alert that is not silenced to the ranks of its attempt, if it lives.

        Else it goes to those of the current attempt.
        """
        for change in changes:
            if not change.alert.silenced:
                self._tell(change.alert, change.plain)

    def _tell(self, alert: Alert, plain: Mapping[str, Json]) -> None:
        packed = PackedRecord(*encode_body(AlertRecord(alert=plain)))
        attempt = self._attempt_of(alert)
        first = {0, *alert.origin.ranks[:FIRST_RANKS]}
        others: deque[RankSession] = deque()
        for rank, session in attempt.sessions.items():
            if rank in first:
                self._send(session, packed)
            else:
                others.append(session)
        if others and self._num_waiting + len(others) <= MAX_WAITING:
            self._waiting.append(_Copies(packed, others))
            self._num_waiting += len(others)

    def _attempt_of(self, alert: Alert) -> Attempt:
        run = self._state.runs[alert.run]
        attempts = [attempt for attempt in run.judged if attempt.number == alert.attempt]
        return attempts[0] if attempts and attempts[0].lives else run.current

    def run_slice(self) -> None:
        """Tell others, as many as may be told at once."""
        for session, packed in self._next():
            self._send(session, packed)

    def _next(self) -> Iterator[tuple[RankSession, PackedRecord]]:
        for _ in range(min(COPIES_PER_ROUND, self._num_waiting)):
            copies = self._waiting[0]
            yield copies.sessions.popleft(), copies.packed
            self._num_waiting -= 1
            if not copies.sessions:
                self._waiting.popleft()

    def _send(self, session: RankSession, packed: PackedRecord) -> None:
        peer = self._peers.get(session.id)
        if peer is not None and session.state is RankState.ALIVE:
            self._ingest.forward(peer, session.id, packed)
