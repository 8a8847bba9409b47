"""How a node is: what keeps it from its work, and what an operator is to know besides."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradwatch_server.cluster.alerts.ledger_watch import LedgerWatch
from gradwatch_server.cluster.log_watch import LogWatch
from gradwatch_server.cluster.ownership.clocks import Clocks
from gradwatch_server.cluster.ownership.membership import Membership
from gradwatch_server.cluster.partitions.host import Host
from gradwatch_server.engine.published import PublishedState
from gradwatch_server.nats.connection import Connection


class Condition:
    """What `/readyz` of a node says.

    Args:
        connection: To NATS.
        membership: Has the lease.
        ledger: Looks at PostgreSQL.
        log: Looks at the stream of the log.
        host: Has the partitions.
        clocks: Those of the other nodes.
        published: Returns what each engine of the node published.
    """

    def __init__(
        self,
        connection: Connection,
        membership: Membership,
        ledger: LedgerWatch,
        log: LogWatch,
        host: Host,
        clocks: Clocks,
        published: Callable[[], Iterable[PublishedState]],
    ) -> None:
        self._connection = connection
        self._membership = membership
        self._ledger = ledger
        self._log = log
        self._host = host
        self._clocks = clocks
        self._published = published

    @property
    def fault(self) -> str | None:
        """What keeps the node from its work, None if nothing."""
        if (cut_off := self._connection.fault) is not None:
            return f"NATS: {cut_off}"
        if self._membership.fault is not None:
            return self._membership.fault
        if not self._membership.has_lease():
            return "lease: it could not be renewed in time"
        if self._log.fault is not None:
            return f"log: {self._log.fault}"
        if self._ledger.fault is not None:
            return f"PostgreSQL: {self._ledger.fault}"
        return self._host.fault

    def notes(self) -> dict[str, str]:
        """Return what it does its work with, and ought not to: a name, and what is the matter."""
        now_ns = self._clocks.now_ns()
        losses = (own.recent_loss(now_ns) for own in self._published())
        lost = [own.text for own in losses if own is not None]
        clocks = self._clocks.fault
        return ({"lost": "; ".join(lost)} if lost else {}) | ({"clocks": clocks} if clocks else {})
