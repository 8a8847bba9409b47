"""What goes wrong with nodes and between them, and until when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from random import Random

from simulation.clock import Clock
from simulation.nodes.scenario import NodesScenario

LEADER, BUCKETS, LEDGER = "the leader of the stream", "that of the buckets", "the ledger"
"""What can be away for everybody."""


class NodeFaults:
    """Draws the faults of a scenario, tick by tick, until it is `over`."""

    def __init__(
        self, scenario: NodesScenario, random: Random, clock: Clock, note: Callable[..., None]
    ) -> None:
        self.over = False
        self.random = random
        self.scenario = scenario
        self.note = note
        self._clock = clock
        self._away_until_s: dict[Hashable, float] = defaultdict(float)

    def chance(self, chance: float) -> bool:
        """Tell whether something that has this chance happens now."""
        return chance > 0.0 and not self.over and self.random.random() < chance

    def strike(self) -> None:
        """Draw what is away for a while from now on."""
        scenario, nodes = self.scenario, range(self.scenario.nodes)
        if self.chance(scenario.leader):
            self._cut(LEADER)
        if self.chance(scenario.buckets):
            self._cut(BUCKETS)
        if self.chance(scenario.away):
            self._cut(LEDGER)
        for node in nodes:
            if self.chance(scenario.cut):
                self._cut(("node", node, "and NATS"))
            if self.chance(scenario.ledger_cut):
                self._cut(("node", node, "and the ledger"))
        if self.chance(scenario.pair_cut):
            self._cut(("nodes", *sorted(self.random.sample(nodes, 2))))

    def _cut(self, what: Hashable) -> None:
        until_s = self._clock.now_s + self.random.random() * self.scenario.cut_s
        self._away_until_s[what] = until_s
        self.note("away or cut:", what, "until", round(until_s, 1))

    def _is_away(self, what: Hashable) -> bool:
        return not self.over and self._clock.now_s < self._away_until_s[what]

    @property
    def has_leader(self) -> bool:
        """Whether the stream takes anything."""
        return not self._is_away(LEADER)

    @property
    def has_buckets(self) -> bool:
        """Whether keys are written and read; what takes the stream's leader has theirs too."""
        return self.has_leader and not self._is_away(BUCKETS)

    def reaches_nats(self, node: int) -> bool:
        """Tell whether a node reaches the servers of NATS."""
        return not self._is_away(("node", node, "and NATS"))

    def reaches_ledger(self, node: int) -> bool:
        """Tell whether a node reaches the ledger."""
        return not self._is_away(LEDGER) and not self._is_away(("node", node, "and the ledger"))

    def reach(self, one: int, other: int) -> bool:
        """Tell whether messages come from one node to another."""
        if one == other:
            return self.reaches_nats(one)
        pair = ("nodes", *sorted((one, other)))
        return self.reaches_nats(one) and self.reaches_nats(other) and not self._is_away(pair)
