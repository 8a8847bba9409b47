"""One seed of a cluster of nodes, from its scenario to its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from simulation.nodes.cluster import NodeCluster, NodeParts
from simulation.nodes.scenario import draw
from simulation.nodes.stream_client import simulated_time
from simulation.simulate import surroundings, trace_of, violation_of


@dataclass(frozen=True, slots=True)
class NodesOutcome:
    """What came of a seed.

    Args:
        seed: The seed.
        violation: The promise that was broken, None if all were kept.
        trace: The last things that happened, one a line.
        made: Records that the workers made.
        stored: Those that were stored.
        lost: Those that were declared lost.
        alerts: Alert events.
        boots: Starts of engines.
        epochs: How often a partition was taken over.
        refused: Writes of owners that were not owners any more.
    """

    seed: int
    violation: str | None
    trace: str
    made: int
    stored: int
    lost: int
    alerts: int
    boots: int
    epochs: int
    refused: int

    @property
    def counts(self) -> Mapping[str, int]:
        """What was counted, by what it is."""
        return {
            "records made": self.made,
            "stored": self.stored,
            "declared lost": self.lost,
            "alert events": self.alerts,
            "takings of a partition": self.epochs,
            "starts of an engine": self.boots,
            "owners of before refused": self.refused,
        }


def simulate_nodes(
    seed: int, parts: NodeParts | None = None, *, changes: Mapping[str, Any] | None = None
) -> NodesOutcome:
    """Run one seed.

    Args:
        seed: The seed.
        parts: Other classes than those of the product.
        changes: What is other in its scenario than it would draw.
    """
    random = Random(seed)
    scenario = replace(draw(random), **(changes or {}))
    cluster = NodeCluster(scenario, random, parts or NodeParts())
    with surroundings(scenario.job), simulated_time(cluster.clock):
        violation = violation_of(cluster)
    accounts = [own for checker in cluster.checkers for own in checker.records.accounts.values()]
    return NodesOutcome(
        seed=seed,
        violation=violation,
        trace=trace_of(cluster.trace),
        made=sum(len(account.made) for account in accounts),
        stored=sum(account.num_stored for account in accounts),
        lost=sum(account.num_lost for account in accounts),
        alerts=len(cluster.reader.events),
        boots=cluster.num_starts,
        epochs=cluster.num_epochs,
        refused=cluster.num_refused,
    )
