"""What a cluster is made of, each part a process that can be killed; and a single process."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

import tests.support.aggregator as aggregator_process
from benchmarks.cluster_faults.machines import NUM_MACHINES, Machines
from benchmarks.harness import Aggregator, wait_until
from tests.support.cluster import Cluster
from tests.support.nats_servers import NATSServers
from tests.support.place import LOOPBACK
from tests.support.postgres import PostgresServer

CONFIG: Final = """
[rules.nonfinite]
clear_steps = 1
[budgets]
alert_events = 1000000
"""
"""Each poisoned step is an alert of its own, and all are told."""

PATIENCE_S: Final = 30.0
"""How long it may take until all that was acknowledged is counted."""


class Ground:
    """Three nodes, three NATS servers, PostgreSQL, and a single process that sees the same.

    Args:
        directory: Where logs and data are put.
        machines: Where the nodes and the NATS servers run; all else is in the centre.
        lease_s: The time of a node's lease.
        stack: Ends what is started.
    """

    def __init__(
        self, directory: Path, machines: Machines, lease_s: float, stack: contextlib.ExitStack
    ) -> None:
        self.machines = machines
        self.lease_s = lease_s
        self.nats = stack.enter_context(
            NATSServers(directory / "nats", NUM_MACHINES, places=machines.places)
        )
        self.postgres = PostgresServer()
        stack.callback(self.postgres.close)
        self._open_to_machines()
        ledger = self.postgres.make_database().replace(LOOPBACK.host, machines.centre.host)
        lease = {"GRADWATCH_CLUSTER_LEASE_S": str(lease_s), "GRADWATCH_INSECURE": "true"}
        self.cluster = Cluster(directory, self.nats.urls, ledger, NUM_MACHINES, **lease)
        stack.callback(self.cluster.close)
        for node, place in zip(self.cluster.nodes.values(), machines.places, strict=True):
            node.move(place)
            _configure(node)
        self.single = Aggregator(directory / "single" / "data")
        stack.callback(self.single.close)
        _configure(self.single)
        self.single.start()
        self.cluster.start()

    def _open_to_machines(self) -> None:
        """Let nodes of other machines into PostgreSQL."""
        if self.machines.can_be_cut:
            self.postgres.stop()
            rules = self.postgres.directory / "data" / "pg_hba.conf"
            with rules.open("a") as file:
                file.write("host all all 10.77.0.0/24 trust\n")
            self.start_postgres()

    def start_postgres(self) -> None:
        """Start PostgreSQL, or start it again."""
        if self.machines.can_be_cut:
            self.postgres.start(listen_addresses="*")
        else:
            self.postgres.start()

    @property
    def endpoints(self) -> list[str]:
        """Where the clients of each node connect."""
        return [node.ingest for node in self.cluster.nodes.values()]

    @property
    def urls(self) -> list[str]:
        """Where each node answers HTTP."""
        return [node.url for node in self.cluster.nodes.values()]

    def wait_until_accounted(self, produced: dict[str, int]) -> None:
        """Wait until the cluster has stored, or knows as lost, so many records of each run."""
        node = next(iter(self.cluster.nodes.values()))

        def is_accounted() -> bool:
            found = (records_of(node, run) for run in produced)
            return all(
                counts.get("stored", 0) + counts.get("lost", 0) >= wanted
                for counts, wanted in zip(found, produced.values(), strict=True)
            )

        wait_until(is_accounted, PATIENCE_S, "all records to be accounted for")

    def describe(self) -> list[str]:
        """Return what each node says of itself and of who owns what."""
        return [f"{name}: {_describe(node)}" for name, node in self.cluster.nodes.items()]


def records_of(node: aggregator_process.Aggregator, run: str) -> dict[str, int]:
    """Return what `/health` counts of a run's records, nothing while it is not answered."""
    try:
        answer = node.get(f"/runs/{run}/health")
    except httpx.TransportError:
        return {}
    found: dict[str, int] = answer.json()["records"] if answer.is_success else {}
    return found


def _describe(node: aggregator_process.Aggregator) -> str:
    try:
        ready, found = node.get("/readyz"), node.json("/cluster")
    except httpx.HTTPError as error:
        return f"does not answer: {error}"
    owners = Counter(found["owners"].values())
    return f"/readyz {ready.status_code} {ready.text.strip()}; owners {dict(owners)}"


def _configure(node: aggregator_process.Aggregator) -> None:
    node.directory.parent.mkdir(parents=True, exist_ok=True)
    (node.directory.parent / "gradwatch.toml").write_text(CONFIG)


@contextlib.contextmanager
def make_ground(machines: Machines, lease_s: float, directory: Path) -> Iterator[Ground]:
    """Yield a cluster whose partitions all have owners, and a single process."""
    with contextlib.ExitStack() as stack:
        yield Ground(directory, machines, lease_s, stack)
