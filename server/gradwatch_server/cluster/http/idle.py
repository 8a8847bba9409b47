"""Partitions for which nobody answers just now, as a node sees it."""

from __future__ import annotations

from gradwatch_server.cluster.ownership.membership import Membership
from gradwatch_server.cluster.partitions.host import Host


def idle_partitions(
    partitions: int, host: Host, membership: Membership
) -> tuple[list[int], list[int]]:
    """Return the partitions of this node for which no engine answers, and those of none."""
    here, nowhere, owned = [], [], host.owned
    has_lease = membership.has_lease()
    for number in range(partitions):
        if (own := owned.get(number)) is not None:
            if own.awaits_engine or not has_lease:
                here.append(number)
        elif (owner := membership.owner_of(number)) is None:
            nowhere.append(number)
        elif owner.id == membership.node:  # it was lost, or is being released
            here.append(number)
    return here, nowhere
