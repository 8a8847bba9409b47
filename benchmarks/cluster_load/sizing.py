"""What a load needs, worked out from what one record was measured to need. No input, no output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

BEATS_PER_S = 0.5
"""Signs of life of each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a record, a sign of life, a rank and a step were measured to need.

    Args:
        wire_bytes: Its bytes, as a rank sends it.
        log_bytes: Bytes in the log, in one copy.
        node_s: CPU seconds of gradwatch's nodes.
        nats_s: CPU seconds of all NATS servers together.
        beat_node_s: CPU seconds of nodes for a sign of life.
        beat_nats_s: CPU seconds of all NATS servers for one.
        session_bytes: Memory for a rank.
        frame_bytes: Memory for a step of a run, once all ranks are merged.
        frame_wal_bytes: Bytes that PostgreSQL writes ahead for one.
        frame_postgres_s: CPU seconds of PostgreSQL for one.
    """

    wire_bytes: float
    log_bytes: float
    node_s: float
    nats_s: float
    beat_node_s: float
    beat_nats_s: float
    session_bytes: float
    frame_bytes: float
    frame_wal_bytes: float
    frame_postgres_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Who sends.

    Args:
        ranks: Ranks that are connected.
        ranks_per_run: Ranks of each run.
        records_per_s: Records of each rank, per second.
        window_steps: Steps of each run that are kept in memory.
    """

    ranks: int
    ranks_per_run: int
    records_per_s: float
    window_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one machine has.

    Args:
        cores: Cores.
        network_bytes_per_s: What its network takes in.
        disk_bytes_per_s: What its disk writes.
        memory_bytes: Memory.
        connections: Connections of ranks that a node takes.
    """

    cores: int
    network_bytes_per_s: float
    disk_bytes_per_s: float
    memory_bytes: float
    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a fleet needs, of all machines together unless it says otherwise.

    Args:
        wire_bytes_per_s: From ranks to nodes.
        forwarded_bytes_per_s: From node to node, as most ranks are not connected to the owner.
        log_bytes_per_s: Into JetStream, in one copy.
        wal_bytes_per_s: Into PostgreSQL.
        node_cores: Cores of nodes.
        nats_cores: Cores of NATS servers.
        postgres_cores: Cores of PostgreSQL.
        nodes: Nodes, each of which keeps one core busy at most.
        connections: Connections of ranks to each node.
        session_bytes: Memory for what is known of ranks.
        window_bytes: Memory for windows.
        open_bytes: Memory for one step whose ranks are not all there.
    """

    wire_bytes_per_s: float
    forwarded_bytes_per_s: float
    log_bytes_per_s: float
    wal_bytes_per_s: float
    node_cores: float
    nats_cores: float
    postgres_cores: float
    nodes: int
    connections: int
    session_bytes: float
    window_bytes: float
    open_bytes: float


COPIES = 3
"""Of the log, each on a NATS server of its own."""

BUSY = 0.7
"""Share of a core that a node is to be busy at most: beyond it what arrives waits."""


def need(record: Record, fleet: Fleet, machine: Machine) -> Need:
    """Return what a fleet needs."""
    records = fleet.ranks * fleet.records_per_s
    beats = fleet.ranks * BEATS_PER_S
    cores = records * record.node_s + beats * record.beat_node_s
    nodes = max(math.ceil(cores / BUSY), math.ceil(fleet.ranks / machine.connections), 2)
    runs = math.ceil(fleet.ranks / fleet.ranks_per_run)
    frames = runs * fleet.records_per_s
    return Need(
        wire_bytes_per_s=records * record.wire_bytes,
        forwarded_bytes_per_s=records * record.wire_bytes * (nodes - 1) / nodes,
        log_bytes_per_s=records * record.log_bytes,
        wal_bytes_per_s=frames * record.frame_wal_bytes,
        node_cores=cores,
        nats_cores=records * record.nats_s + beats * record.beat_nats_s,
        postgres_cores=frames * record.frame_postgres_s,
        nodes=nodes,
        connections=math.ceil(fleet.ranks / nodes),
        session_bytes=fleet.ranks * record.session_bytes,
        window_bytes=runs * fleet.window_steps * record.frame_bytes,
        open_bytes=fleet.ranks * record.wire_bytes,
    )


def shares(found: Need, machine: Machine) -> dict[str, float]:
    """Return how much of what three NATS machines and one of PostgreSQL have is needed.

    Above 1 it is too much. The largest one is what limits first; nodes can be added, and are not
    among them.
    """
    # Each server keeps each entry, and all that is forwarded comes in and goes out once.
    into_nats = found.log_bytes_per_s + found.forwarded_bytes_per_s / COPIES
    return {
        "NATS: network": into_nats / machine.network_bytes_per_s,
        "NATS: disk": found.log_bytes_per_s / machine.disk_bytes_per_s,
        "NATS: cores": found.nats_cores / COPIES / machine.cores,
        "PG: cores": found.postgres_cores / machine.cores,
        "PG: disk": found.wal_bytes_per_s / machine.disk_bytes_per_s,
    }


def limit(found: Need, machine: Machine) -> tuple[str, float]:
    """Return what limits first, and how much of it is needed."""
    return max(shares(found, machine).items(), key=lambda item: item[1])


def machines_of_nodes(found: Need, machine: Machine) -> int:
    """Return how many machines the nodes need, by their cores, network and memory."""
    memory = found.session_bytes + found.window_bytes + found.open_bytes
    network = found.wire_bytes_per_s + 2 * found.forwarded_bytes_per_s + found.log_bytes_per_s
    return max(
        math.ceil(found.nodes / machine.cores),
        math.ceil(memory / machine.memory_bytes),
        math.ceil(network / machine.network_bytes_per_s),
    )


def sampled(fleet: Fleet, every: int) -> Fleet:
    """Return a fleet that sends each so manieth step only."""
    return replace(fleet, records_per_s=fleet.records_per_s / every)


def leaves(fleet: Fleet, ranks_per_leaf: int) -> Fleet:
    """Return a fleet of which one rank for so many sends, for all of them."""
    return replace(
        fleet,
        ranks=math.ceil(fleet.ranks / ranks_per_leaf),
        ranks_per_run=math.ceil(fleet.ranks_per_run / ranks_per_leaf),
    )


def rows(needs: Mapping[str, Need], machine: Machine) -> list[tuple[str, ...]]:
    """Return a table: a line for each thing that is needed, a column for each fleet."""
    lines: list[tuple[str, ...]] = []

    def add(what: str, *cells: str) -> None:
        lines.append((what, *cells))

    all_ = needs.values()
    add("from ranks to nodes", *(_bytes(own.wire_bytes_per_s) + "/s" for own in all_))
    add("from node to node", *(_bytes(own.forwarded_bytes_per_s) + "/s" for own in all_))
    add("into JetStream, one copy", *(_bytes(own.log_bytes_per_s) + "/s" for own in all_))
    add(
        f"into JetStream, {COPIES} copies",
        *(_bytes(COPIES * own.log_bytes_per_s) + "/s" for own in all_),
    )
    add("into PostgreSQL", *(_bytes(own.wal_bytes_per_s) + "/s" for own in all_))
    add("cores for nodes", *(f"{own.node_cores:,.1f}" for own in all_))
    add("cores for NATS", *(f"{own.nats_cores:,.1f}" for own in all_))
    add("cores for PostgreSQL", *(f"{own.postgres_cores:,.2f}" for own in all_))
    add("nodes", *(f"{own.nodes:,}" for own in all_))
    add("connections of a node", *(f"{own.connections:,}" for own in all_))
    add("memory: windows", *(_bytes(own.window_bytes) for own in all_))
    add("memory: ranks", *(_bytes(own.session_bytes) for own in all_))
    add("memory: one open step", *(_bytes(own.open_bytes) for own in all_))
    add("machines for nodes", *(f"{machines_of_nodes(own, machine):,}" for own in all_))
    add("limits first", *(_limit(own, machine) for own in all_))
    return lines


def _limit(found: Need, machine: Machine) -> str:
    what, share = limit(found, machine)
    return f"{what} {share:.0%}"


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} B"
