"""Faults of machines and connections, each with its duration."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from simulation.clock import Clock
from simulation.network import Connection
from simulation.scenario import Scenario
from simulation.worker import Worker

HEARTBEAT_S: Final = 6.0
"""After which a half-open connection is broken, as the heartbeat of the sockets does it."""


class FaultInjector:
    """Draws the faults of a scenario, tick by tick, until it is `over`."""

    def __init__(
        self, scenario: Scenario, random: Random, clock: Clock, note: Callable[..., None]
    ) -> None:
        self.over = False
        self._scenario = scenario
        self._random = random
        self._clock = clock
        self._note = note
        self._full_until_s = 0.0
        self._frozen_until_s = 0.0

    @property
    def is_full(self) -> bool:
        return not self.over and self._clock.now_s < self._full_until_s

    @property
    def is_frozen(self) -> bool:
        """Whether the aggregator is stopped, as by SIGSTOP."""
        return not self.over and self._clock.now_s < self._frozen_until_s

    def chance(self, chance: float) -> bool:
        """Tell whether something that has this chance happens now."""
        return chance > 0.0 and not self.over and self._random.random() < chance

    def strike_aggregator(self) -> None:
        """Draw the faults of the aggregator's machine."""
        scenario, now_s = self._scenario, self._clock.now_s
        if self.chance(scenario.disk_full):
            self._full_until_s = now_s + self._random.random() * 10
            self._note("disk full until", round(self._full_until_s, 1))
        if self.chance(scenario.freeze):
            self._frozen_until_s = now_s + self._random.random() * 30
            self._note("aggregator stopped until", round(self._frozen_until_s, 1))
        if self.chance(scenario.clock_jump):
            hours = self._random.choice((-1, 1))
            self._clock.set_by(hours * 3_600)
            self._note("clock set by", hours, "h")

    def strike(self, worker: Worker) -> None:
        """Draw the faults of a worker's network."""
        scenario, now_s = self._scenario, self._clock.now_s
        connection = worker.socket.connection
        if self.chance(scenario.partition):
            until_s = now_s + self._random.random() * 30
            worker.socket.unreachable_until_s = until_s
            self._note(worker.name, "unreachable until", round(until_s, 1))
            if connection is not None:
                connection.up.swallows = connection.down.swallows = True
                connection.breaks_s = now_s + HEARTBEAT_S
        if connection is not None and connection.is_open:
            self._strike_connection(worker.name, connection)

    def _strike_connection(self, name: str, connection: Connection) -> None:
        if self.chance(self._scenario.cut):
            self._note(name, "cut off with", len(connection.up), "on the way")
            connection.close(self._random)
        elif self.chance(self._scenario.half_open):
            pipe = self._random.choice((connection.up, connection.down))
            pipe.swallows = True
            connection.breaks_s = self._clock.now_s + HEARTBEAT_S
            self._note(name, "half open,", "up" if pipe is connection.up else "down")
