"""The faults: what is done, and what undoes it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from benchmarks.cluster_faults.ground import Ground
from benchmarks.cluster_faults.machines import NUM_MACHINES

Undo: TypeAlias = Callable[[], object]

PAST_LEASE: Final = 1.4
"""How many leases a node is paused or cut off: others have taken what it owned."""

DOWN_S: Final = 2.0
"""How long a server is away that comes back by itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Args:
        name: What the table calls it.
        inflict: Does it, given what there is, the run that it is to hit and which time it is;
            returns what undoes it.
        leases: How many times a lease it lasts at least.
        held_s: How many seconds besides.
        goes_on: Whether records are acknowledged again before it is undone.
        needs_cut: Whether it takes machines whose network can be cut.
    """

    name: str
    inflict: Callable[[Ground, str, int], Undo]
    leases: float = 0.0
    held_s: float = 0.0
    goes_on: bool = True
    needs_cut: bool = False


def _kill_owner(ground: Ground, run: str, _number: int) -> Undo:
    name = ground.cluster.owner_of(run)
    ground.cluster.kill(name)
    return ground.cluster.nodes[name].start


def _kill_nats(ground: Ground, _run: str, number: int) -> Undo:
    server = ground.nats.servers[number % NUM_MACHINES]
    server.kill()
    return server.start


def _kill_postgres(ground: Ground, _run: str, _number: int) -> Undo:
    ground.postgres.stop(signal.SIGQUIT)
    return ground.start_postgres


def _pause_owner(ground: Ground, run: str, _number: int) -> Undo:
    node = ground.cluster.nodes[ground.cluster.owner_of(run)]
    node.send(signal.SIGSTOP)
    return lambda: node.send(signal.SIGCONT)


def _cut_network(ground: Ground, run: str, number: int) -> Undo:
    one = list(ground.cluster.nodes).index(ground.cluster.owner_of(run))
    other = (one + 1 + number % 2) % NUM_MACHINES
    ground.machines.cut(one, other)
    return lambda: ground.machines.mend(one, other)


FAULTS: Final = (
    Fault("node killed", _kill_owner),
    Fault("NATS server killed", _kill_nats, held_s=DOWN_S),
    Fault("PostgreSQL killed", _kill_postgres, held_s=DOWN_S, goes_on=False),
    Fault("owner paused", _pause_owner, leases=PAST_LEASE),
    Fault("network cut", _cut_network, leases=PAST_LEASE, needs_cut=True),
)
