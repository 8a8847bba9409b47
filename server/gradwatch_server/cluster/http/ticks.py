"""Ticks of a cluster: each node tells the others which of its runs moved, once a second."""

from __future__ import annotations

import json
import logging
import threading
from typing import Final

from gradwatch_server.api.ticks import TICK_S, Moved, Ticks, TickSource, tick
from gradwatch_server.cluster.messages.parcels import Assembler, Sender
from gradwatch_server.cluster.repeating import Repeating
from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.message import Message

logger = logging.getLogger(__name__)

MAX_RUNS: Final = 16_384
"""Runs of which it is known that they moved; the one that did longest ago is forgotten first."""


class ClusterTicks:
    """What moved lately on all nodes.

    Args:
        node: Id of this one.
        subject: Where nodes tell it.
        connection: How they are reached.
        own: What moved here.
    """

    def __init__(self, node: str, subject: str, connection: Connection, own: Ticks) -> None:
        self._own = own
        self._subject = subject
        self._sender = Sender(f"{node}-ticks", connection.publish)
        self._assembler = Assembler(self._note)
        self._newest: dict[str, tuple[int, list[int | None]]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._rounds = Repeating("ticks", self._tell, TICK_S)
        self.start, self.stop = self._rounds.start, self._rounds.stop
        connection.subscribe(subject, self._take)

    def reader(self) -> TickSource:
        """Return what moves from now on, for one reader."""
        return _Reader(self)

    def since(self, number: int) -> tuple[int, Moved]:
        """Return what was told after a number, and the number of the newest."""
        with self._lock:
            moved = {run: what for run, (at, what) in self._newest.items() if at > number}
            return self._number, moved

    def _tell(self) -> None:
        moved = self._own.moved()
        if not moved:
            return
        try:
            self._sender.send(self._subject, json.dumps(moved).encode())
        except GradwatchError as error:
            logger.debug("ticks: %s", error)

    def _take(self, message: Message) -> None:
        self._assembler.add(message.payload, message.headers)

    def _note(self, payload: bytes) -> None:
        moved: Moved = json.loads(payload)
        with self._lock:
            self._number += 1
            for run, what in moved.items():
                self._newest.pop(run, None)
                self._newest[run] = self._number, what
            while len(self._newest) > MAX_RUNS:
                del self._newest[next(iter(self._newest))]


class _Reader:
    def __init__(self, ticks: ClusterTicks) -> None:
        self._ticks = ticks
        self._number, _ = ticks.since(0)

    def next(self) -> bytes | None:
        """Return the next tick, None if nothing moved."""
        self._number, moved = self._ticks.since(self._number)
        return tick(moved) if moved else None
