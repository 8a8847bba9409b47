"""One seed, from its scenario to its verdict."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest import mock

from gradwatch_server.core.frames import assembler as assembler_module
from gradwatch_server.storage import checkpointer as checkpointer_module
from simulation.cluster import Cluster, Parts
from simulation.invariants import Violation
from simulation.replay import alert_events
from simulation.scenario import SECOND_NS, Scenario, draw, draw_long


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a seed.

    Args:
        seed: The seed.
        violation: The promise that was broken, None if all were kept.
        trace: The last things that happened, one a line.
        made: Records that the workers made.
        stored: Those that were stored.
        lost: Those that were declared lost.
        duplicates: Those that came again, and were refused.
        alerts: Alert events.
        rules: Those that they are of.
        acknowledged: How many of them say that somebody knows of the alert.
        silenced: How many of them are not told because of a silence.
        boots: Starts of the aggregator.
        evicted: What left memory for others since the last of them.
        refused: What was not taken for want of room since then.
    """

    seed: int
    violation: str | None
    trace: str
    made: int
    stored: int
    lost: int
    duplicates: int
    alerts: int
    rules: frozenset[str]
    acknowledged: int
    silenced: int
    boots: int
    evicted: int
    refused: int

    @property
    def counts(self) -> Mapping[str, int]:
        return {
            "records made": self.made,
            "stored": self.stored,
            "declared lost": self.lost,
            "starts of the aggregator": self.boots,
        }


def violation_of(cluster: Cluster) -> str | None:
    """Run a cluster; return the promise that it broke, None if it kept all."""
    try:
        cluster.run()
    except Violation as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed has found it
        cluster.note(traceback.format_exc())
        return f"nothing fails inside: {error!r}"
    return None


def simulate(
    seed: int,
    parts: Parts | None = None,
    *,
    is_long: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run one seed.

    Args:
        seed: The seed.
        parts: Other classes than those of the product.
        is_long: Whether it takes so many steps that it is known what is usual.
        changes: What is other in its scenario than it would draw.
    """
    random = Random(seed)
    scenario = draw_long(random) if is_long else draw(random)
    scenario = replace(scenario, **(changes or {}))
    cluster = Cluster(scenario, random, parts or Parts())
    with surroundings(scenario):
        violation = violation_of(cluster)
    told = [event.alert for event in alert_events(cluster.aggregator.store)]
    use = cluster.aggregator.budget_use
    accounts = cluster.invariants.accounts.values()
    return Outcome(
        seed=seed,
        violation=violation,
        trace="\n".join(
            f"{at_s:8.2f} s  " + " ".join(map(str, what)) for at_s, what in cluster.trace
        ),
        made=sum(len(account.made) for account in accounts),
        stored=sum(account.num_stored for account in accounts),
        lost=sum(account.num_lost for account in accounts),
        duplicates=cluster.aggregator.num_duplicates,
        alerts=cluster.aggregator.store.alert_events.newest(),
        rules=frozenset(alert["rule"] for alert in told),
        acknowledged=sum(alert["acknowledged"] is not None for alert in told),
        silenced=sum(alert["silenced"] for alert in told),
        boots=cluster.aggregator.num_boots,
        evicted=sum(use[name].num_evicted for name in use),
        refused=sum(use[name].num_refused for name in use),
    )


@contextlib.contextmanager
def surroundings(scenario: Scenario) -> Iterator[None]:
    """Give the engine the scenario's limits, and keep its log silent."""
    logger = logging.getLogger("gradwatch_server")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with (
            mock.patch.object(checkpointer_module, "MAX_TAIL", scenario.tail),
            mock.patch.object(checkpointer_module, "TRIM_NS", SECOND_NS),
            mock.patch.object(assembler_module, "MAX_HELD_RECORDS", scenario.max_held),
        ):
            yield
    finally:
        logger.setLevel(level)
