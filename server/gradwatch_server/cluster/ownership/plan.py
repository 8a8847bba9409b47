"""Which node is to own which partition: worked out alike by all nodes from what they see.

No input, no output and no clock. What is worked out here is only a wish: nodes may see the others
at different moments. That one node alone writes a partition is up to the epoch of its owner record
(`Owner.epoch`), which the log and the ledger check.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

_HASH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a partition, as recorded.

    Args:
        node: Id of the node; None after it released the partition.
        revision: That of the record: each one is higher than all before in the bucket.
        base: What epochs are above the revisions: they are so after the bucket was lost, or one of
            before was put in its place, and revisions began anew.
    """

    node: str | None
    revision: int
    base: int = 0

    @property
    def epoch(self) -> int:
        """That of the partition if this is an acquisition: higher than all before."""
        return self.revision + self.base


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node is to do, partitions in ascending order.

    Args:
        take: To be acquired: its own, and free.
        release: To be recorded as free once their engines have saved: another live node's by now.
        lose: To be stopped at once, before all else: not owned any more, whoever owns them.
    """

    take: tuple[int, ...] = ()
    release: tuple[int, ...] = ()
    lose: tuple[int, ...] = ()


def partition_of(run: str, partitions: int) -> int:
    """Return the partition of a run, of 0 to *partitions* - 1."""
    return _hash(run.encode("utf-8", "surrogatepass")) % partitions


def wanted_owner(partition: int, nodes: Collection[str]) -> str | None:
    """Return which of *nodes* is to own a partition, None without any.

    It is the one with the highest hash of itself and the partition (rendezvous hashing): if a node
    comes or goes, only partitions move that it gets or had.
    """
    if not nodes:
        return None
    return max(nodes, key=lambda node: (_hash(f"{partition}/{node}".encode()), node))


def plan(
    node: str,
    live: Collection[str],
    owners: Mapping[int, Owner],
    held: Mapping[int, int],
    awaited: Collection[str] = (),
) -> Plan:
    """Return what a node is to do with each partition that there is.

    Args:
        node: Its id.
        live: Ids of the nodes that have a lease, itself too if it has one.
        owners: The record of each partition; (None, 0) if there never was one.
        held: Partition to epoch of those that the node holds.
        awaited: Ids of nodes without a lease of which nothing is taken yet.
    """
    # A record that is older than what is held was read from a copy that lags behind.
    lost = {own for own, epoch in held.items() if owners[own].epoch > epoch}
    if node not in live:  # it keeps what nobody else acquired, and does nothing with it
        return Plan(lose=tuple(sorted(lost)))
    kept = held.keys() - lost
    wanted = {own for own in owners if wanted_owner(own, live) == node}
    # Recorded as its own but not held: the answer to its acquisition was lost.
    stray = {own for own, owner in owners.items() if owner.node == node} - kept
    taken = {*live, *awaited}
    free = {own for own, owner in owners.items() if owner.node not in taken} | stray
    return Plan(
        take=tuple(sorted(wanted & free - kept)),
        release=tuple(sorted((kept | stray) - wanted)),
        lose=tuple(sorted(lost)),
    )


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=_HASH_BYTES).digest(), "big")
