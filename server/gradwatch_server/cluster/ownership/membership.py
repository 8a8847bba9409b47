"""The lease of a node, and the partitions that it acquires by it.

A thread renews the lease, looks who else has one, and does what `ownership.plan` says. What is
recorded decides: a partition is acquired by compare and swap, and the revision of that gives its
epoch. If a higher epoch is in log or ledger although there is no record of it, the bucket of the
records was lost, or is an older copy: then the next epoch begins above that one.

A lease says only who may be asked; the epoch, which log and ledger check, keeps one out that did
not hear of another owner. So a node that cannot renew its lease keeps what it has: it can write
only if nobody took it. It answers again once it has a lease, and has read what others took.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from gradwatch_server.cluster.ownership.absences import Absences
from gradwatch_server.cluster.ownership.clocks import Clocks
from gradwatch_server.cluster.ownership.lease import Lease
from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_server.cluster.ownership.owner_records import Change, OwnerRecords
from gradwatch_server.cluster.ownership.plan import Owner, Plan, plan
from gradwatch_server.nats.errors import NATSError, UnreachableError
from gradwatch_server.nats.key_value import KeyValue

logger = logging.getLogger(__name__)

LOOKS: Final = 6
"""How often it is looked at the others within the time of a lease."""

OWNER_READS: Final = 6
"""Every so many looks all owner records are read; what somebody says he wrote is known at once."""

AT_ONCE: Final = 16
"""Partitions acquired side by side; before each so many the lease is renewed if it is time."""

LEAVE_S: Final = 10.0
"""How long the end waits until all that is held is saved."""

LEAVE_LOOK_S: Final = 0.02


class Holder(Protocol):
    """Runs what a node owns. All calls return at once."""

    def own(self, partition: int, epoch: int) -> None:
        """Begin with a partition."""

    def release(self, partition: int) -> None:
        """Save a partition and end it."""

    def lose(self, partition: int) -> None:
        """End a partition, which another may have by now."""

    def has_ended(self, partition: int) -> bool:
        """Tell whether nothing of a partition runs any more."""

    def outranked(self, partition: int) -> int | None:
        """Return an epoch that keeps a partition from being begun with, None without one."""


class Membership:
    """One node's part in the cluster.

    Args:
        record: What it says of itself.
        nodes: The leases; keys go after *lease_s*, or later.
        owners: The owner records.
        partitions: How many there are.
        lease_s: The time of a lease.
        holder: Runs what is owned.
        clocks: What the nodes tell of the time, None if nothing.
    """

    def __init__(
        self,
        record: NodeRecord,
        nodes: KeyValue,
        owners: KeyValue,
        partitions: int,
        lease_s: float,
        holder: Holder,
        clocks: Clocks | None = None,
    ) -> None:
        self.node = record.id
        self._lease = Lease(record, nodes, lease_s, clocks)
        self._absences = Absences(lease_s)
        self._lease_s = lease_s
        self._holder = holder
        self._held: dict[int, int] = {}
        self._releasing: set[int] = set()
        self._floors: dict[int, int] = {}  # partition -> an epoch that the next one is to exceed
        self._live: Mapping[str, NodeRecord] = MappingProxyType({})
        self._looks_left = 0
        self._known_since_s: float | None = None  # the begin of the lease that it is known for
        self._fault: str | None = "the node has no lease yet"
        self._asked = threading.Event()
        self._stopping = threading.Event()
        self._records = OwnerRecords(owners, partitions, self._look_soon)
        self._thread = threading.Thread(target=self._run, name="gradwatch-membership", daemon=True)

    @property
    def fault(self) -> str | None:
        """Why the cluster could not be looked at last, None if it could; what is owned is kept."""
        return self._fault

    @property
    def live(self) -> Mapping[str, NodeRecord]:
        """The nodes that had a lease when it was looked last."""
        return self._live

    def has_lease(self) -> bool:
        """Tell whether its own lease holds, and it is known what others took before it began."""
        return self._lease.holds() and self._known_since_s == self._lease.begun_s

    def is_live(self, node: str) -> bool:
        """Tell whether a node had a lease when it was looked last, or may come back."""
        is_here = node == self.node or node in self._live
        return is_here or self._lease.steady_s() < self._lease_s

    def owner_of(self, partition: int) -> NodeRecord | None:
        """Return the live node that owns a partition, None if none does just now."""
        owner = self._records.owner_of(partition).node
        return None if owner is None else self._live.get(owner)

    def owned(self) -> tuple[int, ...]:
        """Return the partitions that the node holds, also while it has no lease."""
        return tuple(sorted(self._held))

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def look_again(self) -> None:
        """Have everything read anew soon: the connection was cut, for one. From any thread."""
        self._looks_left = 0
        self._asked.set()

    def stop(self) -> None:
        """Release all, give the lease back, and end."""
        self._stopping.set()
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look_soon(self) -> None:
        self._asked.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._look()
            try:
                if not self._lease.holds():
                    self._lose(self._plan(self._records.all()).lose)
            except Exception:
                logger.exception("partitions could not be ended; it is tried again")
            self._asked.wait(self._lease_s / LOOKS)
            self._asked.clear()
        self._leave()

    def _look(self) -> None:
        try:
            self._round()
            self._fault = None
        except NATSError as error:
            hint = "; are most of its servers there?" if isinstance(error, UnreachableError) else ""
            self._fault = f"NATS: {error}{hint}"
            self._looks_left = 0
            logger.debug("a look at the cluster failed: %s", error)
        except Exception:
            logger.exception("a look at the cluster failed")

    def _round(self) -> None:
        self._lease.renew()
        begun_s = self._lease.begun_s
        self._live = self._lease.read_all()
        self._looks_left -= 1
        if self._looks_left < 0 or self._known_since_s != begun_s:
            for partition in self._records.read():
                self._begin_anew(partition)
            self._looks_left = OWNER_READS
        self._note_outranked()
        recorded = self._records.all()
        wish = self._plan(recorded)
        self._lose(wish.lose)
        self._known_since_s = begun_s
        self._act(wish, recorded)

    def _begin_anew(self, partition: int) -> None:
        """Acquire what is held with a higher epoch: the record of it was lost."""
        if partition in self._held:
            self._floors[partition] = self._held[partition]
            self._lose([partition])

    def _plan(self, recorded: Mapping[int, Owner]) -> Plan:
        """Work out what is to be done with each partition."""
        live = self._live.keys() if self._lease.holds() else self._live.keys() - {self.node}
        absent = {own.node for own in recorded.values() if own.node is not None} - live
        awaited = self._absences.awaited(absent, self._lease.steady_s())
        return plan(self.node, live, recorded, self._held, awaited)

    def _act(self, wish: Plan, recorded: Mapping[int, Owner]) -> None:
        """Release and acquire, if nothing was written since the records were as given."""
        # What began to end is given up also if nobody wants it any more: nothing else frees it.
        for partition in sorted({*wish.release, *self._releasing}):
            if self._keeps_lease():
                self._release(partition, recorded[partition])
        free = [partition for partition in wish.take if self._holder.has_ended(partition)]
        for first in range(0, len(free), AT_ONCE):
            if self._keeps_lease():
                some = free[first : first + AT_ONCE]
                self._acquire({partition: recorded[partition] for partition in some})

    def _note_outranked(self) -> None:
        """End what an epoch is in the way of that no record tells of: it is acquired with another.

        If there is a record that tells of it, it came meanwhile, and the acquisition fails.
        """
        for partition, epoch in list(self._held.items()):
            floor = self._holder.outranked(partition)
            if floor is not None and floor >= epoch:
                self._floors[partition] = floor
                self._lose([partition])

    def _keeps_lease(self) -> bool:
        """Renew the lease if it is time: many writes may take longer than it lasts."""
        self._lease.renew()
        return self.has_lease()  # if there was a gap, what others took in it is read first

    def _acquire(self, owners: Mapping[int, Owner]) -> None:
        changes = {
            partition: Change(own.revision, max(own.base, self._floor_of(partition) - own.revision))
            for partition, own in owners.items()
        }
        for partition, revision in self._write(self.node, changes).items():
            if revision is not None:
                epoch = revision + changes[partition].base
                self._holder.own(partition, epoch)
                self._held[partition] = epoch  # if that fails it is not held, and acquired again

    def _floor_of(self, partition: int) -> int:
        return self._floors.get(partition, 0)

    def _release(self, partition: int, owner: Owner) -> None:
        if partition in self._held and partition not in self._releasing:
            self._releasing.add(partition)
            self._holder.release(partition)
        if self._holder.has_ended(partition):
            self._write(None, {partition: Change(owner.revision, owner.base)})
            self._forget(partition)

    def _lose(self, partitions: Sequence[int]) -> None:
        if partitions:
            shown = ", ".join(map(str, partitions))
            logger.warning("not owned any more, and ended here: partitions %s", shown)
        for partition in partitions:
            self._holder.lose(partition)
            self._forget(partition)

    def _forget(self, partition: int) -> None:
        self._held.pop(partition, None)
        self._releasing.discard(partition)

    def _write(self, node: str | None, changes: Mapping[int, Change]) -> dict[int, int | None]:
        """Write owner records; return their revisions, None of one that another wrote before."""
        written = self._records.write(node, changes)
        if None in written.values():
            self._looks_left = 0
        return written

    def _leave(self) -> None:
        """Give up all that is held, so that others need not wait for the end of the lease."""
        for partition in self._held:
            self._holder.release(partition)
        until_s = time.monotonic() + LEAVE_S
        try:
            while self._held and self.has_lease() and time.monotonic() < until_s:
                self._lease.renew()
                for partition in list(self._held):
                    if self._holder.has_ended(partition):
                        self._release(partition, self._records.owner_of(partition))
                time.sleep(LEAVE_LOOK_S)
            self._lease.give_back()
        except NATSError as error:
            logger.warning("what this node owned is free once its lease has run out: %s", error)
