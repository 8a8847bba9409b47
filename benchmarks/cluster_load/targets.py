"""What records are sent to: the single process, or nodes with their NATS servers and PostgreSQL."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest
from nats.aio.client import Client

from benchmarks.harness import aggregator, cpu_seconds, rss_mb
from gradwatch_server.nats.connection import Connection
from tests.support.aggregator import Aggregator
from tests.support.cluster import Cluster
from tests.support.nats_servers import NATSServers
from tests.support.postgres import PostgresServer
from tests.support.waiting import PATIENCE_S

NUM_NATS: Final = 3

ENVIRON: Final = {
    # What a pass sends is of live ranks that say nothing between their records.
    "GRADWATCH_SESSION_TIMEOUT_S": "3600",
    "GRADWATCH_RULES__RANK_SILENT__ENABLED": "false",
    "GRADWATCH_BUDGETS__RUNS": "20000",
    "GRADWATCH_BUDGETS__RUNS_PER_CLIENT": "20000",
    # At the limit itself new connections are refused for a while.
    "GRADWATCH_BUDGETS__INGEST_CONNECTIONS": "8192",
    # What changed is saved at the end of a pass, and not anywhere in it.
    "GRADWATCH_CHECKPOINT_S": "3600",
    # On so few cores a lease is not to be lost because senders take all of them for a while.
    "GRADWATCH_CLUSTER_LEASE_S": "15",
}

POSTGRES: Final = {"fsync": "on", "autovacuum": "on", "max_wal_size": "1GB"}
"""As it is used, which the tests' own is not."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds that processes used, all their threads."""

    nodes: float
    nats: float = 0.0
    postgres: float = 0.0

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(self.nodes + other.nodes, self.nats + other.nats, self.postgres + other.postgres)

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.nodes - other.nodes, self.nats - other.nats, self.postgres - other.postgres)

    def per(self, count: float) -> Cpu:
        """Return that of one of so many."""
        return Cpu(self.nodes / count, self.nats / count, self.postgres / count)


@dataclass(frozen=True, slots=True)
class Written:
    """What nodes wrote.

    Args:
        messages: Messages of the log.
        log_bytes: Their bytes, in one copy.
        wal_bytes: Bytes of PostgreSQL's write-ahead log.
    """

    messages: int = 0
    log_bytes: int = 0
    wal_bytes: int = 0

    def __sub__(self, other: Written) -> Written:
        return Written(
            self.messages - other.messages,
            self.log_bytes - other.log_bytes,
            self.wal_bytes - other.wal_bytes,
        )


@dataclass(frozen=True, slots=True)
class Counted:
    """What aggregators say of the records that they were sent."""

    stored: int
    lost: int
    alerts: int


class Target:
    """Aggregators that answer for the same runs.

    Args:
        aggregators: The nodes, or the single process.
        stores: What the nodes write to; None for the single process.
        log: The stream that has their log.
    """

    def __init__(
        self, aggregators: Sequence[Aggregator], stores: Stores | None = None, log: str = ""
    ) -> None:
        self.aggregators = aggregators
        self._stores = stores
        self._log = log

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where ranks attach."""
        return tuple(own.ingest for own in self.aggregators)

    @property
    def pids(self) -> list[int]:
        """The processes of the aggregators."""
        return [own.process.pid for own in self.aggregators]

    def cpu(self) -> Cpu:
        """Return the CPU seconds used so far."""
        nodes = sum(cpu_seconds(pid) for pid in self.pids)
        if self._stores is None:
            return Cpu(nodes)
        return Cpu(nodes, self._stores.nats_cpu_s(), self._stores.postgres_cpu_s())

    def written(self) -> Written:
        """Return what was written so far; nothing is known of the single process."""
        if self._stores is None:
            return Written()
        messages, log_bytes = self._stores.log(self._log)
        return Written(messages, log_bytes, self._stores.wal_bytes())

    def stop(self) -> Cpu:
        """Stop all aggregators, which save what changed; return the CPU seconds that this took."""
        before, ended_s = self.cpu(), _ended_cpu_s()
        for own in self.aggregators:
            own.stop()
        nodes = _ended_cpu_s() - ended_s - before.nodes
        if self._stores is None:
            return Cpu(nodes)
        return Cpu(
            nodes,
            self._stores.nats_cpu_s() - before.nats,
            self._stores.postgres_cpu_s() - before.postgres,
        )

    def memory_mb(self) -> float:
        """Return the resident memory of all aggregators together, in 10^6 bytes."""
        return sum(rss_mb(pid) for pid in self.pids)

    def used(self, budget: str) -> int:
        """Return what is used of a budget, by the aggregator that uses most of it."""
        pages = [own.get("/metrics").raise_for_status().text for own in self.aggregators]
        return max(_number(f'gradwatch_budget_used{{budget="{budget}"}}', own) for own in pages)

    def counted(self) -> Counted:
        """Return what was counted since the start."""
        metrics = [own.get("/metrics").raise_for_status().text for own in self.aggregators]
        stored, lost = (
            sum(_number(f'gradwatch_records_total{{outcome="{outcome}"}}', own) for own in metrics)
            for outcome in ("stored", "lost")
        )
        alerts = self.aggregators[0].json("/alerts")
        return Counted(stored, lost, len(alerts["alerts"] if isinstance(alerts, dict) else alerts))


def _ended_cpu_s() -> float:
    """Return the CPU seconds of all processes that this one started and saw end."""
    return float(sum(psutil.Process().cpu_times()[2:4]))


def _number(name: str, metrics: str) -> int:
    found = re.search(rf"^{re.escape(name)} ([0-9.e+]+)$", metrics, re.MULTILINE)
    return int(float(found[1])) if found else 0


class Stores:
    """NATS servers and PostgreSQL, for one cluster after the other."""

    def __init__(
        self, directory: Path, postgres: PostgresServer, nats: NATSServers, connection: Connection
    ) -> None:
        self._directory = directory
        self._postgres = postgres
        self._nats = nats
        self._connection = connection
        self._number = 0

    def nats_cpu_s(self) -> float:
        """Return the CPU seconds of the NATS servers."""
        return sum(cpu_seconds(server.pid) for server in self._nats.servers)

    def postgres_cpu_s(self) -> float:
        """Return the CPU seconds of PostgreSQL: what runs, and what ended."""
        main = psutil.Process(self._postgres.pid)
        total = sum(main.cpu_times()[:4])
        for child in main.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(child.cpu_times()[:2])
        return float(total)

    @property
    def nats_version(self) -> str:
        """What runs."""

        async def ask(client: Client) -> str:
            version = client.connected_server_version
            return f"{version.major}.{version.minor}.{version.patch}"

        return self._connection.call(ask, "the version of NATS")

    @property
    def postgres_version(self) -> str:
        """What runs."""
        ((version,),) = self._postgres.execute("SHOW server_version")
        return str(version).partition(" ")[0]

    def log(self, name: str) -> tuple[int, int]:
        """Return how many messages a stream has, and their bytes in one copy."""

        async def ask(client: Client) -> tuple[int, int]:
            state = (await client.jetstream().stream_info(name)).state
            return state.messages, state.bytes

        return self._connection.call(ask, f"the size of {name}")

    def wal_bytes(self) -> int:
        """Return how many bytes PostgreSQL wrote ahead so far."""
        ((count,),) = self._postgres.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        return int(count)

    @contextlib.contextmanager
    def cluster(self, nodes: int, partitions: int) -> Iterator[Target]:
        """Run a new cluster; nothing of it is left."""
        self._number += 1
        directory = self._directory / f"cluster-{self._number}"
        directory.mkdir()
        database = self._postgres.make_database()
        namespace = f"load{self._number}"
        settings = {
            **ENVIRON,
            "GRADWATCH_CLUSTER_PARTITIONS": str(partitions),
            "GRADWATCH_CLUSTER_NAMESPACE": namespace,
        }
        made = Cluster(directory, self._nats.urls, database, nodes, **settings)
        try:
            made.start()
            yield Target(list(made.nodes.values()), self, f"{namespace.upper()}_LOG")
        finally:
            made.close()
            self._empty(database)

    def _empty(self, database: str) -> None:
        """Delete what a cluster left, so that the next one finds as much room."""

        async def delete(client: Client) -> None:
            manager = client.jetstream(timeout=PATIENCE_S)
            for stream in await manager.streams_info():
                await manager.delete_stream(stream.config.name or "")

        self._connection.call(delete, "the streams of a cluster", PATIENCE_S)
        self._postgres.execute(f"DROP DATABASE {database.rpartition('/')[2]} WITH (FORCE)")


@contextlib.contextmanager
def stores() -> Iterator[Stores]:
    """Run three NATS servers and PostgreSQL in a temporary directory; exit where they are not."""
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwatch-bench-"))
        try:
            postgres = PostgresServer()
            stack.callback(postgres.close)
            postgres.stop()
            postgres.start(**POSTGRES)
            nats = stack.enter_context(NATSServers(Path(name) / "nats", NUM_NATS))
        except pytest.skip.Exception as missing:
            sys.exit(str(missing))
        connection = stack.enter_context(Connection(nats.urls, "benchmark"))
        yield Stores(Path(name), postgres, nats, connection)


@contextlib.contextmanager
def single() -> Iterator[Target]:
    """Run the single process, with its files in a temporary directory."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENVIRON.items():
            environment.setenv(name, value)
        with aggregator() as server:
            yield Target([server])
