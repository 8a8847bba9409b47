"""Nodes of a cluster as processes, each of which can be killed and started again."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, Final

from gradwatch_server.cluster.ownership.plan import partition_of, wanted_owner
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until

_NUMBERS: Final = count(1)


class Cluster:
    """Nodes that share NATS servers and a ledger.

    Args:
        directory: Where their logs are put.
        nats_urls: The NATS servers.
        ledger: URL of the database.
        num_nodes: How many nodes.
        environ: Environment variables on top of those of the tests.
    """

    def __init__(
        self,
        directory: Path,
        nats_urls: Sequence[str],
        ledger: str,
        num_nodes: int,
        **environ: str,
    ) -> None:
        settings = {
            "GRADWATCH_CLUSTER_NAMESPACE": f"test{next(_NUMBERS)}",
            "GRADWATCH_CLUSTER_REPLICAS": str(len(nats_urls)),
            "GRADWATCH_CLUSTER_LEASE_S": "3",
            "GRADWATCH_CLUSTER": ",".join(nats_urls),
            "GRADWATCH_LEDGER": ledger,
            **environ,
        }
        self.nodes = {
            name: Aggregator(directory / name / "data", "--node", name, **settings)
            for name in "abcdef"[:num_nodes]
        }

    def start(self) -> None:
        """Start all nodes, and wait until each partition has an owner."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Aggregator.start, self.nodes.values()))
        self.settle()

    def settle(self) -> None:
        """Wait until those that run know of each other, and each owns what it is to own."""
        running = {name: own for name, own in self.nodes.items() if own.is_running}

        def is_settled() -> bool:
            found = [own.json("/cluster") for own in running.values()]
            live = {node["id"] for node in found[0]["nodes"]}
            wanted = [wanted_owner(own, live) for own in range(found[0]["partitions"])]
            names = {str(own).rpartition("-")[0] for own in live}
            owners = [list(each["owners"].values()) for each in found]
            return names == running.keys() and all(own == wanted for own in owners)

        wait_until(is_settled, "all partitions have owners")

    def owner_of(self, run: str) -> str:
        """Return the name of the node that owns the partition of a run."""
        return self.owner_of_partition(partition_of(run, self._described()["partitions"]))

    def owner_of_partition(self, number: int) -> str:
        """Return the name of the node that owns a partition."""
        return str(self._described()["owners"][str(number)]).rpartition("-")[0]

    def run_of(self, name: str, prefix: str = "run") -> str:
        """Return a name of a run that a node owns."""
        names = (f"{prefix}-{number}" for number in count())
        return next(run for run in names if self.owner_of(run) == name)

    def _described(self) -> dict[str, Any]:
        some = next(own for own in self.nodes.values() if own.is_running)
        found: dict[str, Any] = some.json("/cluster")
        return found

    def kill(self, name: str) -> None:
        """Kill a node."""
        self.nodes[name].stop(signal.SIGKILL)

    def close(self) -> None:
        """End all."""
        for node in self.nodes.values():
            node.close()
