"""What is promised of a partition, whoever owns it, checked beside the simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gradwatch_server.nats.chain import Chain, epoch_of
from gradwatch_server.storage.encoding import decode_entry
from gradwatch_server.storage.jetstream.batch import decode_entries
from gradwatch_server.storage.jetstream.label import Label, MessageKind
from gradwatch_server.storage.store import AlertEvent, Line
from simulation.invariants import InvariantChecker, require
from simulation.nodes.names import log_of
from simulation.nodes.partition import PartitionEngine
from simulation.nodes.stream import Written
from simulation.replay import Replay, check_replay


class PartitionChecker:
    """Accounts for one partition: its log, what the ledger has of it, and who writes both."""

    def __init__(self, partition: int) -> None:
        self.records = InvariantChecker()
        self.partition = partition
        self._chains: dict[str, Chain] = defaultdict(Chain)
        self._parts: list[bytes] = []
        self._log_epoch = 0
        self._ledger_epoch = 0
        self._writers: dict[int, str] = {}  # epoch -> who wrote to the ledger
        self._log_writers: dict[int, str] = {}  # epoch -> who wrote to the log
        self._replay = Replay()

    def written(self, written: Written) -> None:
        """Check a message of the log the moment it is written, if it counts."""
        message = written.message
        if not self._chains[message.subject].take(written.sequence, dict(message.headers)):
            return
        label = Label.of(message.headers)
        promise = "no entry of a lower epoch comes after one of a higher"
        if message.subject == log_of(self.partition):
            epoch = epoch_of(dict(message.headers))
            require(epoch >= self._log_epoch, promise, self.partition, epoch, self._log_epoch)
            self._log_epoch = epoch
            first = self._log_writers.setdefault(epoch, message.writer)
            promise = "one owner alone writes an epoch of the log"
            require(first == message.writer, promise, self.partition, epoch, message.writer)
            self._take(label, message.payload)

    def _take(self, label: Label, payload: bytes) -> None:
        """Take what counts of the log; entries once all messages are there that they are in."""
        if label.kind is not MessageKind.ENTRIES or label.part == 1:
            self._parts = []
        if label.kind is not MessageKind.ENTRIES:
            return
        self._parts.append(payload)
        if label.part != label.parts or len(self._parts) != label.parts:
            return
        for offset, encoded in decode_entries(self._parts):
            own = len(self.records.entries) + 1
            require(offset == own, "entries are numbered in their order", offset, own)
            self.records.committed([Line(decode_entry(encoded))])

    def taken_over(self, epoch: int) -> None:
        """Note that an epoch has the partition in the ledger."""
        self._ledger_epoch = max(self._ledger_epoch, epoch)

    def ledger_written(self, epoch: int, owner: str) -> None:
        """Check a transaction of the ledger the moment it is committed."""
        first = self._writers.setdefault(epoch, owner)
        require(first == owner, "one owner alone writes an epoch", self.partition, epoch, owner)
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
