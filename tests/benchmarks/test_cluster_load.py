"""The load of a cluster: what is worked out on paper, and that simulated ranks are heard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cluster_load.load import WARM, Load
from benchmarks.cluster_load.passes import measure
from benchmarks.cluster_load.sizing import (
    Fleet,
    Machine,
    Record,
    leaves,
    limit,
    machines_of_nodes,
    need,
    rows,
    sampled,
)
from benchmarks.cluster_load.table import PARTS, SECTIONS
from benchmarks.cluster_load.targets import Cpu, Target, single
from tests.support.aggregator import Aggregator

RECORD = Record(
    wire_bytes=30_000.0,
    log_bytes=40_000.0,
    node_s=1.9e-3,
    nats_s=1e-3,
    beat_node_s=2e-4,
    beat_nats_s=1e-4,
    session_bytes=5_000.0,
    frame_bytes=50_000.0,
    frame_wal_bytes=80_000.0,
    frame_postgres_s=1e-3,
)
FLEET = Fleet(ranks=10_000, ranks_per_run=1_000, records_per_s=1.0, window_steps=512)
MACHINE = Machine(
    cores=32,
    network_bytes_per_s=3e9,
    disk_bytes_per_s=2e9,
    memory_bytes=128e9,
    connections=4_096,
)


def test_each_rank_needs_its_records_and_its_signs_of_life() -> None:
    found = need(RECORD, FLEET, MACHINE)

    assert found.wire_bytes_per_s == pytest.approx(300e6)
    assert found.log_bytes_per_s == pytest.approx(400e6)
    assert found.wal_bytes_per_s == pytest.approx(10 * 80_000)
    assert found.node_cores == pytest.approx(10_000 * 1.9e-3 + 5_000 * 2e-4)
    assert found.nats_cores == pytest.approx(10_000 * 1e-3 + 5_000 * 1e-4)
    assert found.postgres_cores == pytest.approx(10 * 1e-3)
    assert found.nodes == 29  # each keeps 0.7 of a core busy
    assert found.forwarded_bytes_per_s == pytest.approx(300e6 * 28 / 29)
    assert found.connections == 345
    assert found.window_bytes == pytest.approx(10 * 512 * 50_000)
    assert found.session_bytes == pytest.approx(50e6)
    assert found.open_bytes == pytest.approx(300e6)


def test_connections_ask_for_nodes_where_work_does_not() -> None:
    idle = replace(FLEET, ranks=100_000, records_per_s=0.0)

    assert need(replace(RECORD, beat_node_s=0.0), idle, MACHINE).nodes == 25


def test_what_limits_first_is_what_is_needed_most_of() -> None:
    small_disk = replace(MACHINE, disk_bytes_per_s=1e9)
    few_cores = replace(MACHINE, cores=2)
    found = need(RECORD, FLEET, MACHINE)

    what, share = limit(found, small_disk)
    assert (what, round(share, 6)) == ("NATS: disk", 0.4)
    what, share = limit(found, few_cores)
    assert (what, round(share, 6)) == ("NATS: cores", 1.75)


@pytest.mark.parametrize(
    ("machine", "machines"),
    [
        (MACHINE, 1),
        (replace(MACHINE, cores=4), 8),
        (replace(MACHINE, memory_bytes=0.1e9), 7),
        (replace(MACHINE, network_bytes_per_s=0.2e9), 7),
    ],
)
def test_machines_of_nodes_have_cores_memory_and_network(machine: Machine, machines: int) -> None:
    assert machines_of_nodes(need(RECORD, FLEET, MACHINE), machine) == machines


def test_sampling_and_leaves_send_less() -> None:
    """Of fewer steps the ranks and their signs of life stay; of leaves these are fewer too."""
    rare, few = sampled(FLEET, 10), leaves(FLEET, 8)

    assert (rare.ranks, rare.records_per_s) == (10_000, 0.1)
    assert (few.ranks, few.ranks_per_run, few.records_per_s) == (1_250, 125, 1.0)
    found = need(RECORD, few, MACHINE)
    assert found.window_bytes == need(RECORD, FLEET, MACHINE).window_bytes


def test_the_table_has_a_column_for_each_fleet() -> None:
    needs = {"all": need(RECORD, FLEET, MACHINE), "few": need(RECORD, leaves(FLEET, 8), MACHINE)}
    lines = {what: cells for what, *cells in rows(needs, MACHINE)}

    assert lines["from ranks to nodes"] == ["300.0 MB/s", "37.5 MB/s"]
    assert lines["into JetStream, 3 copies"] == ["1.2 GB/s", "150.0 MB/s"]
    assert lines["nodes"] == ["29", "4"]
    assert lines["limits first"] == ["NATS: disk 20%", "NATS: disk 2%"]


def test_each_part_is_written_into_a_section_of_its_own() -> None:
    page = SECTIONS["throughput"].read()
    for part in PARTS:
        page = SECTIONS[part].filled(page, f"measured: {part}")
    again = SECTIONS["flatness"].filled(page, "measured again")

    assert [f"measured: {part}" in again for part in PARTS] == [True, False, True]
    assert again.count("measured again") == 1


@pytest.mark.slow
def test_simulated_ranks_are_heard_and_what_that_costs_is_counted() -> None:
    load = Load(runs=3, ranks=2, steps=20, layers=4, rate=300.0)
    heard: list[Aggregator] = []

    def look(target: Target) -> None:
        (server,) = target.aggregators
        heard.append(server)
        for run in range(3):
            records = server.health(f"load-{run}")["records"]
            assert (records["stored"], records["lost"]) == (2 * (1 + WARM + 20), 0)

    with single() as target:
        found = measure(target, load, look)

    assert heard
    assert found.seconds > 0.3  # 120 records, 300 a second
    assert found.again == 0
    assert found.cpu.nodes > 0
    assert found.each_of(100.0).nodes > found.each.nodes  # what it saved as it was stopped
    assert (found.cpu.nats, found.cpu.postgres) == (0.0, 0.0)
    assert found.record_bytes > 4 * 36
    assert Cpu(2.0, 1.0).per(2) - Cpu(1.0, 0.5) == Cpu(0.0)
