"""Has a node reach the others and the leaders of streams, by another NATS server if need be."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from gradwatch_server.cluster.names import Names
from gradwatch_server.cluster.reach.leaders import MAX_TURNS, Handovers
from gradwatch_server.cluster.reach.missing import Missing
from gradwatch_server.cluster.repeating import Repeating
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.errors import NATSError
from gradwatch_server.nats.message import Message
from gradwatch_server.nats.reach import BEAT_S, Leader, Wanted, beat_of, leader_of

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.25
"""Pause between two looks."""

STOP_S: Final = 1.0
"""How long the end waits for a look."""


class ReachWatch:
    """Beats, hears the others beat, and asks the leaders.

    Args:
        node: Id of this one.
        names: What things are called.
        connection: To NATS.
        live: Returns the ids of the nodes that have a lease.
    """

    def __init__(
        self,
        node: str,
        names: Names,
        connection: Connection,
        live: Callable[[], Collection[str]],
    ) -> None:
        self._node = node
        self._own_beat = names.beat(node)
        self._handover_subject = names.handovers
        self._wanted = Wanted(names.beat("*"), names.streams)
        self._connection = connection
        self._live = live
        self._missing = Missing()
        self._handovers = Handovers()
        self._beats = Repeating("beats", self._beat, BEAT_S, STOP_S)
        self._looks = Repeating("reach", self._look, LOOK_S, STOP_S)

    def start(self) -> None:
        """Begin."""
        self._connection.subscribe(self._wanted.beats, self._hear)
        self._connection.subscribe(self._handover_subject, self._hear_handovers)
        self._beats.start()
        self._looks.start()

    def stop(self) -> None:
        """End."""
        self._looks.stop()
        self._beats.stop()

    def _beat(self) -> None:
        try:
            self._connection.publish(self._own_beat)
        except NATSError as error:
            logger.debug("no beat: %s", error)

    def _hear(self, message: Message) -> None:
        node = message.subject.rpartition(".")[2]
        self._missing.note([beat_of(node)], time.monotonic())

    def _look(self) -> None:
        if not self._connection.is_connected:  # it goes to another one by itself
            return
        try:
            leaders = self._connection.ask_leaders(self._wanted.streams)
            self._hand_over(leaders)
            self._seek(leaders)
        except NATSError as error:
            logger.debug("what is reached is not known: %s", error)

    def _seek(self, leaders: Mapping[str, Leader]) -> None:
        """Go to another server if something is missing, and that one reaches it."""
        now_s = time.monotonic()
        self._missing.note(map(leader_of, leaders), now_s)
        others = (beat_of(own) for own in self._live() if own != self._node)
        missing = self._missing.find([*others, *map(leader_of, self._wanted.streams)], now_s)
        if not self._missing.is_to_look(missing, now_s):
            return
        moved = self._connection.move(self._wanted, missing)
        self._missing.looked(time.monotonic(), has_moved=moved is not None)
        if moved is not None:
            what = ", ".join(sorted(missing))
            logger.warning("NATS: moved from %s to %s; not reached before: %s", *moved, what)

    def _hand_over(self, leaders: Mapping[str, Leader]) -> None:
        """Have those lead whom all servers hear."""
        turn = sorted({*self._live(), self._node}).index(self._node)
        if turn >= MAX_TURNS:
            return
        silent = frozenset[str]().union(*(own.silent for own in leaders.values()))
        alive = self._connection.find_alive(silent) if silent else silent
        due = self._handovers.due(leaders, alive, turn, time.monotonic())
        if not due:
            return
        told = [(stream, leaders[stream].name, sorted(due[stream])) for stream in due]
        self._connection.publish(self._handover_subject, json.dumps(told).encode())
        self._note_asked(told)
        for stream in self._connection.hand_over({own: leaders[own] for own in due}):
            what = f"{leaders[stream].name}, which leads {stream},"
            names = ", ".join(sorted(due[stream]))
            logger.warning("NATS: %s does not hear %s; another server is to lead", what, names)

    def _hear_handovers(self, message: Message) -> None:
        self._note_asked(json.loads(message.payload))

    def _note_asked(self, told: Iterable[tuple[str, str, list[str]]]) -> None:
        """Leave alone for a while whom a node asks: two requests would go to two leaders."""
        for stream, leader, unheard, *_ in told:
            self._handovers.note_asked(stream, leader, unheard, time.monotonic())
