"""Without a quorum of the NATS servers a node does not start, and one that runs says so."""

from __future__ import annotations

import logging

import pytest

from gradwatch_server.cluster import patience
from gradwatch_server.cluster.ownership.creation import create_or_read
from gradwatch_server.cluster.ownership.membership import Membership
from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_server.cluster.patience import patiently
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.errors import UnreachableError
from gradwatch_server.nats.key_value import KeyValue
from tests.support.nats_servers import NATSServers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LEASE_S = 1.0


class Nothing:
    """Holds what it is told to."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def own(self, partition: int, epoch: int) -> None:
        self.begun.append(partition)

    release = lose = lambda self, partition: None

    def has_ended(self, partition: int) -> bool:
        return True

    def outranked(self, partition: int) -> None:
        return None


def test_two_of_three_servers_gone(
    nats_cluster: NATSServers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Connection(nats_cluster.urls) as connection:

        def bucket(name: str, ttl_s: float | None = None) -> KeyValue:
            return KeyValue(connection, name, 3, ttl_s, timeout_s=LEASE_S)

        holder = Nothing()
        created = create_or_read(bucket("quorum-config"))
        membership = Membership(
            NodeRecord("a", "1", "", ""),
            bucket("quorum-nodes", LEASE_S),
            bucket("quorum-owners"),
            1,
            LEASE_S,
            holder,
        )
        membership.start()
        wait_until(lambda: membership.owned() == (0,), "it owns the partition")
        assert membership.fault is None

        for server in nats_cluster.servers[1:]:
            server.kill()
        wait_until(lambda: membership.fault is not None, "what is the matter")
        assert "are most of its servers there?" in (membership.fault or "")
        wait_until(lambda: not membership.has_lease(), "its lease runs out")
        assert membership.owned() == (0,)  # though it may not answer for it

        def is_refused() -> bool:
            try:
                create_or_read(bucket("quorum-config"))
            except UnreachableError:
                return True
            return False

        wait_until(is_refused, "the server that is left leads nothing any more")
        monkeypatch.setattr(patience, "PATIENCE_S", 0.5)
        with caplog.at_level(logging.WARNING), pytest.raises(UnreachableError) as caught:
            patiently(lambda: create_or_read(bucket("quorum-config")))
        says = str(caught.value)
        assert "quorum-config" in says  # whether it was to be made, or its key read
        assert "no answer in time" in says or "JetStream does not answer: no quorum" in says
        assert sum("waiting up to" in line for line in caplog.messages) <= 1

        for server in nats_cluster.servers[1:]:
            server.start()
        monkeypatch.setattr(patience, "PATIENCE_S", 60.0)
        assert patiently(lambda: create_or_read(bucket("quorum-config"))) == created
        wait_until(membership.has_lease, "it goes on")
        assert membership.owned() == (0,)
        assert holder.begun == [0]  # and never began anew
        membership.stop()
