"""What a cluster does for a record, beside the single process: measured, and on paper from that."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from typing import Final, TypeAlias

import psutil

from benchmarks.cluster_load import parts
from benchmarks.cluster_load.load import WARM
from benchmarks.cluster_load.parts import Pair
from benchmarks.cluster_load.passes import SAVE_S, Pass
from benchmarks.cluster_load.sizing import (
    BUSY,
    Fleet,
    Machine,
    Record,
    leaves,
    need,
    rows,
    sampled,
)
from benchmarks.cluster_load.targets import Cpu, Stores, stores
from benchmarks.documents import Section
from benchmarks.report import show

PARTS: Final = ("throughput", "flatness", "sizing")
SECTIONS: Final = {part: Section.of("cluster.md", f"cluster-load --only {part}") for part in PARTS}

MAX_RATIO: Final = 1.5
FLAT: Final = 1.2

FLEET: Final = Fleet(ranks=100_000, ranks_per_run=1_000, records_per_s=1.0, window_steps=512)
MACHINE: Final = Machine(
    cores=32,
    network_bytes_per_s=3.1e9,
    disk_bytes_per_s=2e9,
    memory_bytes=128e9,
    connections=4_096,
)
CPU: Final = ("nodes us", "NATS us", "PG us")
EVERY: Final = 10
RANKS_PER_LEAF: Final = 8

Table: TypeAlias = tuple[str, tuple[str, ...], list[tuple[str, ...]], list[str]]
"""A name, the columns, the rows, and notes."""


def run(*, quick: bool = False, only: str = "", write: bool = False) -> None:
    """Measure and print."""
    chosen = [name for name in PARTS if only in name]
    if not chosen:
        sys.exit(f"--only: no part is called like {only!r}; there are: {', '.join(PARTS)}")
    if write and quick:
        sys.exit("--write needs parts in full: leave --quick out")
    with stores() as servers:
        versions = f"nats-server {servers.nats_version}, PostgreSQL {servers.postgres_version}"
        for name in chosen:
            made = {"throughput": _throughput, "flatness": _flatness, "sizing": _sizing}[name]
            tables = made(servers, quick)
            for table in tables:
                show(*table[:3], *table[3])
            if write:  # each when it is measured: what a later one meets with costs it nothing
                SECTIONS[name].write(_markdown(name, versions, tables))


def _throughput(servers: Stores, quick: bool) -> list[Table]:
    found = parts.grid(servers, quick=quick)
    alone = min((pair.alone for _, _, pair in found), key=lambda own: own.each.nodes)
    base_s = alone.each.nodes
    lines: list[tuple[str, ...]] = [("single process", "", *_cells(alone, base_s))]
    for nodes, partitions, pair in found:
        name = f"{nodes} node{'s' * (nodes > 1)}"
        lines.append((name, str(partitions), *_cells(pair.cluster, base_s)))
    load = alone.load
    columns = ("", "partitions", "records/s", *CPU, "ratio", "per message")
    notes = [
        (
            f"{load.records:,} records of {load.layers} layers, {alone.record_bytes:,.0f} bytes, "
            f"from {load.runs} runs of {load.ranks} ranks, as fast as they are acknowledged; what "
            "sends them has the same cores."
        ),
        (
            "us: microseconds of CPU time for each record, of all nodes together, of three NATS "
            "servers together (three copies), and of PostgreSQL (PG)."
        ),
        (
            f"ratio: CPU of nodes to that of the single process, the least of its passes; aim "
            f"{MAX_RATIO:g} at most."
        ),
        "per message: how many records are written to the log together.",
    ]
    return [("throughput", columns, lines, notes)]


def _flatness(servers: Stores, quick: bool) -> list[Table]:
    lines = []
    first: dict[str, Pair] = {}
    for axis, size, pair in parts.flatness(servers, quick=quick):
        base = first.setdefault(axis, pair)
        for name, own, few in (
            ("single process", pair.alone, base.alone),
            ("1 node", pair.cluster, base.cluster),
        ):
            lines.append(
                (
                    f"{size:,} {axis}",
                    name,
                    f"{own.rate:,.0f}",
                    *_us(_flat(own)),
                    f"{_flat(own).nodes / _flat(few).nodes:.2f}",
                    f"{sum(_all_of(_flat(own))) / sum(_all_of(_flat(few))):.2f}",
                    f"{own.memory_mb:,.0f}",
                )
            )
    load = pair.alone.load
    columns = ("", "", "records/s", *CPU, "nodes: to few", "all: to few", "MB")
    notes = [
        (
            f"About {load.records:,} records of {load.layers} layers each, at the same pace, after "
            f"all ranks were attached and had sent {WARM} step; {parts.PARTITIONS} partitions. "
            f"Saving, once in {SAVE_S:g} s, counts with its share."
        ),
        f"to few: CPU for a record, to that with the fewest; aim {FLAT:g} at most.",
        "Ranks say nothing between their records here: what signs of life cost is told below.",
    ]
    return [("flatness", columns, lines, notes)]


def _sizing(servers: Stores, quick: bool) -> list[Table]:
    large, signs, record = parts.sizing(servers, quick=quick)
    measured: list[tuple[str, ...]] = [
        (name, *_cells(own, pair.alone.each.nodes))
        for what, pair in (("record", large), ("sign of life", signs))
        for name, own in (
            (f"{what}, single process", pair.alone),
            (f"{what}, 1 node", pair.cluster),
        )
    ]
    columns = ("", "a second", *CPU, "ratio", "per message")
    load = large.cluster.load
    notes = [
        (
            f"A record of {load.layers:,} layers: {record.wire_bytes:,.0f} bytes on the wire, "
            f"{record.log_bytes:,.0f} in each copy of the log. A step of a run of "
            f"{load.ranks} ranks: {record.frame_bytes:,.0f} bytes of memory, "
            f"{record.frame_wal_bytes:,.0f} written by PostgreSQL, where what changed is saved "
            f"once in {SAVE_S:g} steps. A rank: {record.session_bytes:,.0f} bytes of memory."
        ),
    ]
    return [("large records", columns, measured, notes), _on_paper(record)]


def _on_paper(record: Record) -> Table:
    fleets = {
        "each step": FLEET,
        f"every {EVERY}th": sampled(FLEET, EVERY),
        f"1 of {RANKS_PER_LEAF} ranks": leaves(FLEET, RANKS_PER_LEAF),
        "both": leaves(sampled(FLEET, EVERY), RANKS_PER_LEAF),
    }
    needs = {name: need(record, fleet, MACHINE) for name, fleet in fleets.items()}
    notes = [
        (
            f"{FLEET.ranks:,} ranks in runs of {FLEET.ranks_per_run:,}, one step a second, "
            f"{parts.SIZING_LAYERS:,} layers: worked out from what is measured above."
        ),
        (
            f"A machine has {MACHINE.cores} cores, takes in "
            f"{MACHINE.network_bytes_per_s / 1e9:g} GB/s, writes "
            f"{MACHINE.disk_bytes_per_s / 1e9:g} GB/s, and has "
            f"{MACHINE.memory_bytes / 1e9:g} GB of memory. There are three for NATS and one for "
            f"PostgreSQL; a node keeps {BUSY:.0%} of one core busy."
        ),
        (
            "limits first: of what NATS and PostgreSQL have, of which there are not more by adding "
            "nodes."
        ),
    ]
    return ("on paper", ("", *needs), rows(needs, MACHINE), notes)


def _cells(own: Pass, alone_s: float) -> tuple[str, ...]:
    messages = 0 if own.load.beats else own.written.messages
    return (
        f"{own.rate:,.0f}",
        *_us(own.each),
        f"{own.each.nodes / alone_s:.2f}",
        f"{own.load.records / messages:.1f}" if messages else "",
    )


def _us(cpu: Cpu) -> tuple[str, ...]:
    return tuple(f"{1e6 * seconds:,.0f}" for seconds in _all_of(cpu))


def _flat(own: Pass) -> Cpu:
    return own.each_of(parts.FLAT_RATE)


def _all_of(cpu: Cpu) -> tuple[float, ...]:
    return cpu.nodes, cpu.nats, cpu.postgres


def _markdown(part: str, versions: str, tables: Sequence[Table]) -> str:
    parts_of_page = [
        (
            f"Made by `scripts/bench cluster-load --only {part} --write`: "
            f"{psutil.cpu_count()} cores ({platform.machine()}), "
            f"load {os.getloadavg()[0]:.1f}, Python "
            f"{platform.python_version()}, {versions}, {time.strftime('%Y-%m-%d %H:%M')}. "
            "All of it, and what sends the records, ran on this one machine."
        )
    ]
    for name, columns, lines, notes in tables:
        marks = ("---", *("---:",) * (len(columns) - 1))
        body = [f"| {' | '.join(line)} |" for line in (columns, marks, *lines)]
        heading = f"**{name[0].upper()}{name[1:]}**"
        parts_of_page.append("\n".join([heading, "", *body, "", *(f"* {own}" for own in notes)]))
    return "\n\n".join(parts_of_page)
