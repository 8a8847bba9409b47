"""What the subjects and buckets of a cluster are called."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from gradwatch_server.stores import log_stream


@dataclass(frozen=True, slots=True)
class Names:
    """Those of one cluster; several may share NATS servers.

    Args:
        namespace: What all of them begin with.
    """

    namespace: str

    def ingest(self, partition: int) -> str:
        """Return the subject of messages to a partition."""
        return f"{self.namespace}.ingest.{partition}"

    def answers(self, node: str) -> str:
        """Return the subject of answers to the clients of a node."""
        return f"{self.namespace}.node.{node}"

    @property
    def alerts(self) -> str:
        """Return the subject on which it is said that alert events were stored."""
        return f"{self.namespace}.alerts"

    @property
    def ticks(self) -> str:
        """Return the subject on which nodes tell which of their runs moved."""
        return f"{self.namespace}.ticks"

    def beat(self, node: str) -> str:
        """Return the subject on which a node beats; `*` for all of them."""
        return f"{self.namespace}.beats.{node}"

    @property
    def handovers(self) -> str:
        """Return the subject on which a node tells which leaders it asks to hand over."""
        return f"{self.namespace}.handovers"

    @property
    def streams(self) -> tuple[str, ...]:
        """Return the names of the streams that a node cannot be without."""
        return log_stream(self.namespace), f"KV_{self.nodes}", f"KV_{self.owners}"

    @property
    def config(self) -> str:
        """Return the bucket of what is fixed at the creation."""
        return f"{self.namespace}-config"

    @property
    def nodes(self) -> str:
        """Return the bucket of leases."""
        return f"{self.namespace}-nodes"

    @property
    def owners(self) -> str:
        """Return the bucket of owner records."""
        return f"{self.namespace}-owners"

    @property
    def silences(self) -> str:
        """Return the bucket of silences."""
        return f"{self.namespace}-silences"


def host_name() -> str:
    """Return the name of the machine as a name of a node."""
    name = socket.gethostname().partition(".")[0]
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in name)[:40]
