"""All attacks by name, and the process that runs one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from benchmarks import alert_readers
from benchmarks.attacks import connections, records, requests, well_meant
from benchmarks.attacks.attack import Outcome, Target
from benchmarks.attacks.line import Line
from benchmarks.harness import Pipe
from gradwatch_server.open_files import raise_limit


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    Args:
        work: Works until its line says stop, and counts what was refused to it.
        is_well_meant: Whether it does not yield the processor: it is measured what it gets, too.
        needs_rate: Whether it needs to know how much the aggregator can take.
        config: Content of `gradwatch.toml`.
    """

    work: Callable[[Line], Outcome | None]
    is_well_meant: bool = False
    needs_rate: bool = False
    config: str = ""

    @property
    def summary(self) -> str:
        return (self.work.__doc__ or "").partition("\n")[0]


NICENESS: Final = 10
"""The attacker yields the processor: what is measured is the aggregator, not the scheduler."""

ATTACKS: Final = {
    "run names": Attack(records.names),
    "sessions": Attack(records.sessions),
    "wide runs": Attack(records.wide),
    "manifests": Attack(records.manifests),
    "descending steps": Attack(records.descending),
    "flapping alerts": Attack(records.flapping),
    "flapping runs": Attack(records.flapping_runs),
    "empty maps": Attack(records.empty_maps),
    "flood": Attack(records.flood),
    "lies about its window": Attack(records.lying),
    "crash loop": Attack(records.crash_loop),
    "idle HTTP": Attack(connections.idle_http),
    "slow bodies": Attack(connections.slow_bodies),
    "idle ingest": Attack(connections.idle_ingest),
    "deaf readers": Attack(connections.deaf_readers),
    "list loops": Attack(requests.list_loops),
    "deep listings": Attack(requests.deep_listings),
    "curve reads": Attack(requests.curve_reads),
    "garbage HTTP": Attack(requests.garbage_http),
    "half of capacity": Attack(well_meant.half_of_capacity, is_well_meant=True, needs_rate=True),
    "many readers": Attack(
        well_meant.many_readers, is_well_meant=True, config=alert_readers.CONFIG
    ),
}


def run_attack(target: Target, pipe: Pipe) -> None:
    """Run one attack from one message of the parent to the next; tell it what came of it."""
    attack = ATTACKS[target.attack]
    if not attack.is_well_meant:
        os.nice(NICENESS)
    raise_limit()
    if attack.needs_rate:
        target = replace(target, rate=well_meant.find_capacity(target))
    outcome = Outcome()
    pipe.send("ready")
    pipe.recv()
    line = Line(target, outcome.refused, pipe.poll)
    told = attack.work(line)
    line.close()
    if told is not None:
        outcome.notes += told.notes
        outcome.wrongs += told.wrongs
    pipe.send(outcome)
