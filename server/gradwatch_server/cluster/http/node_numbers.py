"""What the metrics of a node are read from."""

from __future__ import annotations

from gradwatch_server.api.metrics.snapshot import NodeNumbers
from gradwatch_server.cluster.ownership.clocks import Clocks
from gradwatch_server.cluster.ownership.membership import Membership
from gradwatch_server.cluster.partitions.host import Host
from gradwatch_server.cluster.partitions.takeovers import Takeovers


def read_numbers(
    membership: Membership, host: Host, clocks: Clocks, takeovers: Takeovers, partitions: int
) -> NodeNumbers:
    """Return the numbers of a node at this moment.

    Args:
        membership: Knows the other nodes.
        host: What the node owns.
        clocks: Those of the others.
        takeovers: Counts them.
        partitions: How many there are.
    """
    owned = host.owned.values()
    without = sum(membership.owner_of(number) is None for number in range(partitions))
    return NodeNumbers(
        num_nodes=len(membership.live),
        num_without_owner=without,
        epochs={own.number: own.epoch for own in owned},
        num_engines=sum(own.running is not None for own in owned),
        num_takeovers=takeovers.count,
        takeovers_s=takeovers.total_s,
        num_forwarded=host.num_forwarded,
        num_dropped=host.num_dropped,
        waiting_bytes=sum(own.waiting_bytes for own in owned),
        clock_difference_s=clocks.most_apart_s,
    )
