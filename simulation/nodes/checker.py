"""What is promised of a partition, whoever owns it, checked beside the simulation."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch_server.nats.chain import Chain
from gradwatch_server.nats.stream import Stored
from gradwatch_server.storage.store import AlertEvent, Line
from simulation.invariants import InvariantChecker, require
from simulation.nodes.log import entries_in, epoch_of
from simulation.nodes.partition import PartitionEngine
from simulation.nodes.stream import Written
from simulation.replay import Replay, check_replay


class PartitionChecker:
    """Accounts for one partition: its log, what the ledger has of it, and who writes both."""

    def __init__(self, partition: int) -> None:
        self.records = InvariantChecker()
        self.partition = partition
        self._chain = Chain(0)
        self._log_epoch = 0
        self._ledger_epoch = 0
        self._replay = Replay()

    def written(self, written: Written) -> None:
        """Check a message of the log the moment it is written, if it counts."""
        message = written.message
        if not self._chain.take(written.sequence, dict(message.headers)):
            return
        stored = Stored(written.sequence, message.headers, message.payload)
        epoch, entries = epoch_of(stored), entries_in(stored)
        promise = "no entry of a lower epoch comes after one of a higher"
        require(epoch >= self._log_epoch, promise, self.partition, epoch, self._log_epoch)
        self._log_epoch = epoch
        for offset, entry in entries:
            own = len(self.records.entries) + 1
            require(offset == own, "entries are numbered in their order", offset, own)
            self.records.committed([Line(entry)])

    def taken_over(self, epoch: int) -> None:
        """Note that an epoch has the partition in the ledger."""
        self._ledger_epoch = max(self._ledger_epoch, epoch)

    def ledger_written(self, epoch: int) -> None:
        """Check a transaction of the ledger the moment it is committed."""
        promise = "nothing is written to the ledger once a higher epoch has the partition"
        require(epoch >= self._ledger_epoch, promise, self.partition, epoch, self._ledger_epoch)

    def check(self, engine: PartitionEngine | None, events: Sequence[AlertEvent]) -> None:
        """Check what the ledger and an engine say against the log.

        Args:
            engine: One that serves the partition, between two batches; None without any.
            events: The alert events of the partition.
        """
        replay = self._replay.follow(self.records.entries)
        told = [(event.run, event.alert) for event in events]
        expected = replay.events[: len(told)]
        require(told == expected, "alerts are those of a single process", told, expected)
        self.records.check_alert_events(list(events))
        if engine is None or engine.engine is None or engine.epoch < self._log_epoch:
            return
        num_errors = engine.engine.published.num_apply_errors
        require(not num_errors, "every entry can be applied", num_errors)
        self.records.check_state(engine.engine._state)
        check_replay(engine.engine, events, replay)
